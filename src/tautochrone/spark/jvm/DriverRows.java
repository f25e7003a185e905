package tautochrone;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DecimalType;

import py4j.Gateway;
import scala.Option;
import scala.collection.immutable.ArraySeq$;
import scala.collection.immutable.Seq;

/**
 * Rows that the driver holds as local relations, compared by the bytes of their values: only types of which equal
 * values have equal bytes, as Spark compares them.
 */
public final class DriverRows {
    private static final Set WHOLE_NUMBERS = new HashSet(Arrays.asList(new DataType[] {
        DataTypes.ByteType, DataTypes.ShortType, DataTypes.IntegerType, DataTypes.LongType, DataTypes.DateType}));

    public DriverRows(Gateway gateway) {
    }

    /**
     * Some columns of the rows whose key is among some keys. Null if values of a key's type may be equal and differ
     * in bytes, or if the types of both sides differ.
     *
     * @param columns numbers of the columns of the rows, and of those of the keys that they must equal, with commas
     * @param nullSafe whether NULL equals NULL
     * @param output numbers of the columns of the result, with commas
     */
    public LocalRelation withKeys(
            LocalRelation rows, String columns, LocalRelation keys, String keyColumns, boolean nullSafe,
            String output) {
        UnsafeProjection keyOfRow = key(rows, columns);
        UnsafeProjection keyOfKeys = key(keys, keyColumns);
        if (keyOfRow == null || keyOfKeys == null || !typesOf(rows, columns).equals(typesOf(keys, keyColumns))) {
            return null;
        }
        Set values = new HashSet();
        scala.collection.Iterator each = keys.data().iterator();
        while (each.hasNext()) {
            UnsafeRow key = keyOfKeys.apply((InternalRow) each.next());
            if (nullSafe || !key.anyNull()) {
                values.add(key.copy());
            }
        }
        String[] numbers = output.split(",");
        List attributes = new ArrayList();
        List expressions = new ArrayList();
        for (int i = 0; i < numbers.length; i++) {
            Attribute attribute = (Attribute) rows.output().apply(Integer.parseInt(numbers[i]));
            attributes.add(attribute);
            expressions.add(new BoundReference(Integer.parseInt(numbers[i]), attribute.dataType(), true));
        }
        UnsafeProjection project = UnsafeProjection.create(PythonUtils.toSeq(expressions));
        List selected = new ArrayList();
        each = rows.data().iterator();
        while (each.hasNext()) {
            InternalRow row = (InternalRow) each.next();
            if (values.contains(keyOfRow.apply(row))) {
                selected.add(project.apply(row).copy());
            }
        }
        return relation(PythonUtils.toSeq(attributes), selected);
    }

    /**
     * The distinct values of a column of whole numbers or dates (as days), with commas, NULL as an empty text. Null
     * for a column of another type.
     */
    public String values(LocalRelation rows, int column) {
        DataType type = ((Attribute) rows.output().apply(column)).dataType();
        if (!WHOLE_NUMBERS.contains(type)) {
            return null;
        }
        Set values = new LinkedHashSet();
        scala.collection.Iterator each = rows.data().iterator();
        while (each.hasNext()) {
            InternalRow row = (InternalRow) each.next();
            values.add(row.isNullAt(column) ? "" : String.valueOf(row.get(column, type)));
        }
        return String.join(",", values);
    }

    /**
     * The rows of a table at another version: without the rows that only this version has, and with those that only
     * the other one has. Null if a row that this version alone has is not among its rows, byte for byte.
     *
     * @param rows all rows of this version with one of some keys, perhaps others
     * @param own the rows that this version alone has; null: none
     * @param others the rows that the other one alone has; null: none
     * @param column number of the key in all of them, of whole numbers or dates
     * @param keys the keys, with commas
     */
    public LocalRelation atOtherVersion(
            LocalRelation rows, LocalRelation own, LocalRelation others, int column, String keys) {
        DataType type = ((Attribute) rows.output().apply(column)).dataType();
        if (!WHOLE_NUMBERS.contains(type) || !areAlike(rows, own) || !areAlike(rows, others)) {
            return null;
        }
        Set values = new HashSet(Arrays.asList(keys.split(",")));
        DataType[] types = new DataType[rows.output().size()];
        for (int i = 0; i < types.length; i++) {
            types[i] = ((Attribute) rows.output().apply(i)).dataType();
        }
        UnsafeProjection bytes = UnsafeProjection.create(types);
        Map counts = new HashMap();
        count(own, -1, column, values, bytes, counts);
        count(others, 1, column, values, bytes, counts);
        List result = new ArrayList();
        scala.collection.Iterator each = rows.data().iterator();
        while (each.hasNext()) {
            InternalRow row = (InternalRow) each.next();
            UnsafeRow key = bytes.apply(row);
            Integer count = (Integer) counts.get(key);
            if (count != null && count.intValue() < 0) {
                counts.put(key.copy(), Integer.valueOf(count.intValue() + 1));
            } else {
                result.add(row);
            }
        }
        Iterator left = counts.entrySet().iterator();
        while (left.hasNext()) {
            Map.Entry entry = (Map.Entry) left.next();
            int count = ((Integer) entry.getValue()).intValue();
            if (count < 0) {
                return null;
            }
            for (int i = 0; i < count; i++) {
                result.add(entry.getKey());
            }
        }
        List output = new ArrayList();
        for (int i = 0; i < types.length; i++) {
            // The rows of the other version may have NULL where these have none.
            output.add(((Attribute) rows.output().apply(i)).withNullability(true).newInstance());
        }
        return relation(PythonUtils.toSeq(output), result);
    }

    /** Add to the number of copies of each row whose key is one of some values. */
    private static void count(
            LocalRelation rows, int copies, int column, Set values, UnsafeProjection bytes, Map counts) {
        if (rows == null) {
            return;
        }
        DataType type = ((Attribute) rows.output().apply(column)).dataType();
        scala.collection.Iterator each = rows.data().iterator();
        while (each.hasNext()) {
            InternalRow row = (InternalRow) each.next();
            if (!row.isNullAt(column) && values.contains(String.valueOf(row.get(column, type)))) {
                UnsafeRow whole = bytes.apply(row).copy();
                Integer before = (Integer) counts.get(whole);
                counts.put(whole, Integer.valueOf((before == null ? 0 : before.intValue()) + copies));
            }
        }
    }

    private static boolean areAlike(LocalRelation rows, LocalRelation others) {
        return others == null || rows.schema().asNullable().equals(others.schema().asNullable());
    }

    /** The values of some columns; null if they may be equal and differ in bytes. */
    private static UnsafeProjection key(LocalRelation rows, String columns) {
        String[] numbers = columns.split(",");
        List expressions = new ArrayList();
        for (int i = 0; i < numbers.length; i++) {
            int number = Integer.parseInt(numbers[i]);
            DataType type = ((Attribute) rows.output().apply(number)).dataType();
            if (!hasEqualBytes(type)) {
                return null;
            }
            expressions.add(new BoundReference(number, type, true));
        }
        return UnsafeProjection.create(PythonUtils.toSeq(expressions));
    }

    private static List typesOf(LocalRelation rows, String columns) {
        String[] numbers = columns.split(",");
        List types = new ArrayList();
        for (int i = 0; i < numbers.length; i++) {
            types.add(((Attribute) rows.output().apply(Integer.parseInt(numbers[i]))).dataType());
        }
        return types;
    }

    /** Whether equal values of a type have the same bytes. Zeros and NaN of floats and texts of collations do not. */
    private static boolean hasEqualBytes(DataType type) {
        return WHOLE_NUMBERS.contains(type) || type.equals(DataTypes.StringType)
                || type.equals(DataTypes.BooleanType) || type.equals(DataTypes.BinaryType)
                || type.equals(DataTypes.TimestampType) || type.equals(DataTypes.TimestampNTZType)
                || type instanceof DecimalType;
    }

    private static LocalRelation relation(Seq output, List rows) {
        Object[] data = (InternalRow[]) rows.toArray(new InternalRow[rows.size()]);
        return new LocalRelation(output, (Seq) ArraySeq$.MODULE$.unsafeWrapArray(data), false, Option.empty());
    }
}
