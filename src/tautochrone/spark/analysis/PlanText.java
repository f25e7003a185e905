package tautochrone;

import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import java.util.regex.Pattern;

import org.apache.spark.api.python.PythonBroadcast;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.encoders.AgnosticEncoder;
import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.CommonExpressionId;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GetArrayStructFields;
import org.apache.spark.sql.catalyst.expressions.GetStructField;
import org.apache.spark.sql.catalyst.expressions.In;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedLambdaVariable;
import org.apache.spark.sql.catalyst.expressions.PythonUDAF;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.expressions.RuntimeReplaceable;
import org.apache.spark.sql.catalyst.expressions.ScalaUDF;
import org.apache.spark.sql.catalyst.expressions.objects.LambdaVariable;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationDef;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationRef;
import org.apache.spark.sql.catalyst.plans.logical.CollectMetrics;
import org.apache.spark.sql.catalyst.plans.logical.Generate;
import org.apache.spark.sql.catalyst.plans.logical.HintInfo;
import org.apache.spark.sql.catalyst.plans.logical.JoinHint;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Range;
import org.apache.spark.sql.catalyst.plans.logical.ResolvedHint;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.UnionLoop;
import org.apache.spark.sql.catalyst.plans.logical.UnionLoopRef;
import org.apache.spark.sql.catalyst.plans.logical.View;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.ObjectType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.UserDefinedType;

/**
 * The text of an analyzed plan: two plans with the same text give the same rows.
 *
 * Every node is a Scala product, so its arguments are walked without knowing its class: an argument of a class
 * that is not known here is never left out. A token stands on a line of its own. Not in the text: ids that
 * Spark counts, names of aliases, what only says how rows are computed.
 *
 * A token that begins with `~` follows from the types of the columns that the plan reads: the type of a column, a
 * cast that Spark added, the place of a field in its struct.
 */
public class PlanText {
    private StringBuilder text = new StringBuilder();
    private final Map ids = new HashMap();
    private final Map columns = new HashMap();
    /** Columns whose types files may decide. */
    private final Set inferred = new HashSet();
    /** The types of the columns of tables by their ids, and those that the plan reads. */
    private final Map typesOfInputs = new HashMap();
    private final TreeSet inputs = new TreeSet();
    private final org.apache.spark.sql.classic.SparkSession session;
    private final Pattern secret;
    private int leaves = 0;
    /** The functions that Python runs, in the order of the text. */
    private final List functions = new ArrayList();
    /** Names of tables that belong to no catalog. */
    private final List sources = new ArrayList();
    /** Classes of values of which only the class is in the text. */
    private final List opaque = new ArrayList();

    public PlanText(Object session, Object plan, String secret) {
        this.session = (org.apache.spark.sql.classic.SparkSession) session;
        this.secret = Pattern.compile(secret);
        plan((LogicalPlan) plan);
        for (scala.collection.Iterator each = ((LogicalPlan) plan).output().iterator(); each.hasNext(); ) {
            read((Attribute) each.next());
        }
    }

    public String text() {
        return text.toString();
    }

    /** The columns of tables and files that the plan reads, with their types. */
    public String inputs() {
        return String.join("\n", inputs);
    }

    public String sources() {
        return String.join("\n", (List) sources);
    }

    public String opaque() {
        return String.join("\n", (List) opaque);
    }

    public int functions() {
        return functions.size();
    }

    /** The ids of a function's broadcasts and the files that hold them. */
    public String broadcasts(int number) {
        List lines = new ArrayList();
        List broadcasts = ((PythonFunction) functions.get(number)).broadcastVars();
        for (Iterator each = broadcasts.iterator(); each.hasNext(); ) {
            Broadcast broadcast = (Broadcast) each.next();
            lines.add(broadcast.id() + " " + ((PythonBroadcast) broadcast.value()).path());
        }
        return String.join("\n", lines);
    }

    /** The pickled function and its values. */
    public byte[] command(int number) {
        scala.collection.Seq command = ((PythonFunction) functions.get(number)).command().toSeq();
        byte[] bytes = new byte[command.size()];
        int index = 0;
        for (scala.collection.Iterator each = command.iterator(); each.hasNext(); ) {
            bytes[index++] = ((Byte) each.next()).byteValue();
        }
        return bytes;
    }

    private void token(Object part) {
        String line = String.valueOf(part).replace("\\", "\\\\").replace("\n", "\\n");
        text.append(line.startsWith("~") ? "\\" : "").append(line).append('\n');
    }

    /** A value that follows from the types of columns. */
    private void derived(Object value) {
        String[] lines = apart(value).split("\n");
        for (int index = 0; index < lines.length; index++) {
            text.append(lines[index].startsWith("~") ? "" : "~").append(lines[index]).append('\n');
        }
    }

    private String apart(Object value) {
        StringBuilder before = text;
        text = new StringBuilder();
        value(value);
        String result = text.toString();
        text = before;
        return result;
    }

    private String id(Object id) {
        Object number = ids.get(id);
        if (number == null) {
            number = Integer.valueOf(ids.size());
            ids.put(id, number);
        }
        return "#" + number;
    }

    // Plans ----------------------------------------------------------------------------------------

    private void plan(LogicalPlan plan) {
        if (plan instanceof SubqueryAlias || plan instanceof View || plan instanceof ResolvedHint
                || plan instanceof CollectMetrics || isSame(plan)) {
            plan((LogicalPlan) plan.children().apply(0));
            return;
        }
        token("(" + plan.getClass().getSimpleName());
        if (plan.children().isEmpty()) {
            leaf(plan);
        } else {
            for (scala.collection.Iterator each = plan.children().iterator(); each.hasNext(); ) {
                plan((LogicalPlan) each.next());
            }
            arguments(plan, plan.children());
        }
        token(")");
    }

    /** Whether it is a projection to the columns that there are, in their order. */
    private static boolean isSame(LogicalPlan plan) {
        if (!(plan instanceof Project)) {
            return false;
        }
        scala.collection.Seq list = ((Project) plan).projectList();
        scala.collection.Seq output = ((Project) plan).child().output();
        if (list.size() != output.size()) {
            return false;
        }
        for (int index = 0; index < list.size(); index++) {
            Object item = list.apply(index);
            if (!(item instanceof Attribute)
                    || !((Attribute) item).exprId().equals(((Attribute) output.apply(index)).exprId())) {
                return false;
            }
        }
        return true;
    }

    private void leaf(LogicalPlan leaf) {
        int number = leaves++;
        boolean isByName = true;
        if (leaf instanceof DataSourceV2Relation) {
            table((DataSourceV2Relation) leaf);
        } else if (leaf instanceof LogicalRelation) {
            relation((LogicalRelation) leaf);
        } else if (leaf instanceof LocalRelation) {
            isByName = false;
            rows((StructType) leaf.schema(), ((LocalRelation) leaf).data().iterator());
        } else if (leaf instanceof LogicalRDD) {
            isByName = false;
            Object[] rows = org.apache.spark.sql.classic.Dataset.ofRows(session, leaf)
                .queryExecution().executedPlan().executeCollect();
            rows((StructType) leaf.schema(), scala.Predef.genericWrapArray(rows).iterator());
        } else if (leaf instanceof Range) {
            Range range = (Range) leaf;
            isByName = false;
            token(range.start() + " " + range.end() + " " + range.step());
        } else if (leaf instanceof CTERelationRef) {
            isByName = false;
            token(id(Long.valueOf(((CTERelationRef) leaf).cteId())));
        } else {
            arguments(leaf, leaf.children());
        }
        int index = 0;
        for (scala.collection.Iterator each = leaf.output().iterator(); each.hasNext(); index++) {
            Attribute column = (Attribute) each.next();
            columns.put(column.exprId(), "@" + number + "." + (isByName ? column.name() : "" + index));
            if (leaf instanceof DataSourceV2Relation || inferred.contains(column.exprId())) {
                typesOfInputs.put(column.exprId(), column.dataType().json() + " " + column.nullable());
            }
        }
    }

    private void read(Attribute column) {
        Object type = typesOfInputs.get(column.exprId());
        if (type != null) {
            inputs.add(columns.get(column.exprId()) + " " + type);
        }
    }

    private void table(DataSourceV2Relation relation) {
        if (relation.catalog().isDefined() && relation.identifier().isDefined()) {
            token(((org.apache.spark.sql.connector.catalog.CatalogPlugin) relation.catalog().get()).name());
            token(relation.identifier().get());
        } else {
            Table table = relation.table();
            token(table.getClass().getName());
            token(table.name());
            sources.add(table.name());
            type(relation.schema());
        }
        value(relation.options());
        value(relation.timeTravelSpec());
    }

    private void relation(LogicalRelation logical) {
        Object relation = logical.relation();
        token(relation.getClass().getName());
        if (relation instanceof HadoopFsRelation) {
            // Which files, how they are read and what they hold is an input: a table follows it, or rows are
            // compared.
            token(((HadoopFsRelation) relation).fileFormat().getClass().getName());
            for (scala.collection.Iterator each = logical.output().iterator(); each.hasNext(); ) {
                inferred.add(((Attribute) each.next()).exprId());
            }
        } else {
            type(logical.schema());
            value(relation);
        }
    }

    private void rows(StructType schema, scala.collection.Iterator rows) {
        type(schema);
        List texts = new ArrayList();
        StringBuilder before = text;
        while (rows.hasNext()) {
            text = new StringBuilder();
            typed(rows.next(), schema);
            texts.add(text.toString());
        }
        text = before;
        // The order of a set is another one in each process.
        Collections.sort(texts);
        // One token: where one value is another each time, the order of all rows may be.
        token(String.join("", texts));
    }

    // Expressions ----------------------------------------------------------------------------------

    private void expression(Expression expression) {
        if (expression instanceof Attribute) {
            Object column = columns.get(((Attribute) expression).exprId());
            token(column != null ? column : id(((Attribute) expression).exprId()));
            if (!inferred.contains(((Attribute) expression).exprId())) {
                derived(expression.dataType());
            }
            read((Attribute) expression);
        } else if (expression instanceof Alias) {
            expression(((Alias) expression).child());
            token("as " + id(((Alias) expression).exprId()));
        } else if (expression instanceof Literal) {
            type(expression.dataType());
            typed(((Literal) expression).value(), expression.dataType());
        } else if (expression instanceof NamedLambdaVariable) {
            token(id(((NamedLambdaVariable) expression).exprId()));
            type(expression.dataType());
        } else if (expression instanceof Cast && ((Cast) expression).getTagValue(Cast.USER_SPECIFIED_CAST()).isEmpty()) {
            expression(((Cast) expression).child());
            derived(expression.dataType());
            derived(((Cast) expression).timeZoneId());
            derived(((Cast) expression).evalMode());
        } else if (expression instanceof GetStructField) {
            GetStructField field = (GetStructField) expression;
            token("(field");
            expression(field.child());
            token(field.childSchema().fields()[field.ordinal()].name());
            derived(Integer.valueOf(field.ordinal()));
            token(")");
        } else if (expression instanceof GetArrayStructFields) {
            GetArrayStructFields field = (GetArrayStructFields) expression;
            token("(fields");
            expression(field.child());
            token(field.field().name());
            derived(Integer.valueOf(field.ordinal()));
            token(")");
        } else if (expression instanceof RuntimeReplaceable) {
            // Its other arguments are in what it is replaced by.
            expression(((RuntimeReplaceable) expression).replacement());
        } else {
            token("(" + expression.getClass().getSimpleName());
            if (expression instanceof ScalaUDF) {
                ScalaUDF udf = (ScalaUDF) expression;
                code(udf.function(), 0);
                type(udf.dataType());
                value(udf.children());
            } else if (expression instanceof In) {
                value(((In) expression).value());
                List choices = new ArrayList();
                for (scala.collection.Iterator each = ((In) expression).list().iterator(); each.hasNext(); ) {
                    choices.add(apart(each.next()));
                }
                // A set of Python has another order in each process.
                sorted("in", choices);
            } else {
                arguments(expression, null);
            }
            token(")");
        }
    }

    /** The arguments of a node that are not in `without`. */
    private void arguments(Object node, scala.collection.Seq without) {
        boolean isNamed = node instanceof PythonUDF || node instanceof PythonUDAF;
        scala.Product product = (scala.Product) node;
        for (int index = isNamed ? 1 : 0; index < product.productArity(); index++) {
            Object argument = product.productElement(index);
            if (node instanceof Generate && "qualifier".equals(product.productElementName(index))) {
                continue;
            }
            if (isCounted(node, product.productElementName(index))) {
                token(id(argument));
            } else if (without == null || !isWithin(argument, without)) {
                value(argument);
            }
        }
    }

    /** Whether an argument is an id that Spark counts, though its class does not tell. */
    private static boolean isCounted(Object node, String argument) {
        return node instanceof CTERelationDef && argument.equals("id")
                || node instanceof UnionLoop && argument.equals("id")
                || node instanceof UnionLoopRef && argument.equals("loopId")
                || node instanceof LambdaVariable && argument.equals("id");
    }

    private static boolean isWithin(Object argument, scala.collection.Seq children) {
        if (argument instanceof LogicalPlan) {
            return children.contains(argument);
        }
        if (!(argument instanceof scala.collection.Seq) || ((scala.collection.Seq) argument).isEmpty()) {
            return false;
        }
        for (scala.collection.Iterator each = ((scala.collection.Seq) argument).iterator(); each.hasNext(); ) {
            Object item = each.next();
            if (!(item instanceof LogicalPlan) || !children.contains(item)) {
                return false;
            }
        }
        return true;
    }

    // Values ---------------------------------------------------------------------------------------

    private void value(Object value) {
        if (value == null) {
            token("null");
        } else if (value instanceof LogicalPlan) {
            plan((LogicalPlan) value);
        } else if (value instanceof Expression) {
            expression((Expression) value);
        } else if (value instanceof DataType) {
            type((DataType) value);
        } else if (value instanceof ExprId || value instanceof CommonExpressionId || value instanceof UUID) {
            token(id(value));
        } else if (value instanceof PythonFunction) {
            token("python " + functions.size());
            functions.add(value);
        } else if (value instanceof Metadata || value instanceof SparkSession || value instanceof JoinHint
                || value instanceof HintInfo || value instanceof AgnosticEncoder
                || value instanceof ExpressionEncoder) {
            return;
        } else if (value instanceof scala.Option) {
            token(((scala.Option) value).isDefined() ? "some" : "none");
            if (((scala.Option) value).isDefined()) {
                value(((scala.Option) value).get());
            }
        } else if (value instanceof scala.collection.Map) {
            List entries = new ArrayList();
            scala.collection.Iterator each = ((scala.collection.Map) value).iterator();
            while (each.hasNext()) {
                scala.Tuple2 entry = (scala.Tuple2) each.next();
                entry(entry._1(), entry._2(), entries);
            }
            sorted("map", entries);
        } else if (value instanceof Map) {
            List entries = new ArrayList();
            for (Iterator each = ((Map) value).entrySet().iterator(); each.hasNext(); ) {
                Map.Entry entry = (Map.Entry) each.next();
                entry(entry.getKey(), entry.getValue(), entries);
            }
            sorted("map", entries);
        } else if (value instanceof scala.collection.Set) {
            List entries = new ArrayList();
            scala.collection.Iterator each = ((scala.collection.Set) value).iterator();
            while (each.hasNext()) {
                entries.add(apart(each.next()));
            }
            sorted("set", entries);
        } else if (value instanceof scala.collection.Iterable) {
            token("[");
            scala.collection.Iterator each = ((scala.collection.Iterable) value).iterator();
            while (each.hasNext()) {
                value(each.next());
            }
            token("]");
        } else if (value instanceof Collection) {
            token("[");
            for (Iterator each = ((Collection) value).iterator(); each.hasNext(); ) {
                value(each.next());
            }
            token("]");
        } else if (value.getClass().isArray()) {
            token("[");
            for (int index = 0; index < Array.getLength(value); index++) {
                value(Array.get(value, index));
            }
            token("]");
        } else {
            plain(value);
        }
    }

    private void plain(Object value) {
        String kind = value.getClass().getName();
        if (value instanceof Class) {
            token(((Class) value).getName());
        } else if (value instanceof String || value instanceof Number || value instanceof Boolean
                || value instanceof Character || value instanceof Enum || kind.startsWith("scala.Enumeration")
                || kind.startsWith("org.apache.spark.unsafe.types.")
                || kind.equals("org.apache.spark.sql.types.Decimal")) {
            token(value.getClass().getSimpleName() + " " + value);
        } else if (kind.endsWith("$")) {
            token(kind);
        } else if (value instanceof BoundFunction) {
            token(kind);
            token(((BoundFunction) value).canonicalName());
        } else if (value instanceof scala.Product) {
            token("(" + kind);
            arguments(value, null);
            token(")");
        } else if (kind.equals("org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions")) {
            value(((org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions) value).parameters());
        } else {
            token(kind);
            opaque.add(kind);
        }
    }

    private void entry(Object key, Object value, List entries) {
        if (!(key instanceof String && secret.matcher((String) key).find())) {
            entries.add(apart(key instanceof String ? ((String) key).toLowerCase() : key) + apart(value));
        }
    }

    private void sorted(String name, List entries) {
        Collections.sort(entries);
        token(name);
        for (Iterator each = entries.iterator(); each.hasNext(); ) {
            text.append((String) each.next());
        }
        token("end");
    }

    /** A function of the JVM: its class, and what a lambda refers to. */
    private void code(Object function, int depth) {
        String kind = function.getClass().getName();
        int lambda = kind.indexOf("$$Lambda");
        token(lambda < 0 ? kind : kind.substring(0, lambda));
        if (lambda < 0 || depth > 3) {
            return;
        }
        Field[] fields = function.getClass().getDeclaredFields();
        for (int index = 0; index < fields.length; index++) {
            try {
                if (Modifier.isStatic(fields[index].getModifiers())) {
                    continue;
                }
                fields[index].setAccessible(true);
                Object part = fields[index].get(function);
                if (part != null) {
                    code(part, depth + 1);
                }
            } catch (Exception error) {
                opaque.add(kind.substring(0, lambda));
            }
        }
    }

    /** Without comments of fields, and without what says that a value is never NULL. */
    private void type(DataType type) {
        token(type.catalogString());
    }

    private void typed(Object value, DataType type) {
        if (value == null) {
            token("null");
        } else if (type instanceof UserDefinedType) {
            typed(value, ((UserDefinedType) type).sqlType());
        } else if (type instanceof StructType) {
            StructField[] fields = ((StructType) type).fields();
            token("{");
            for (int index = 0; index < fields.length; index++) {
                DataType kind = fields[index].dataType();
                InternalRow row = (InternalRow) value;
                typed(row.isNullAt(index) ? null : row.get(index, kind), kind);
            }
            token("}");
        } else if (type instanceof ArrayType) {
            array((ArrayData) value, ((ArrayType) type).elementType());
        } else if (type instanceof MapType) {
            array(((MapData) value).keyArray(), ((MapType) type).keyType());
            array(((MapData) value).valueArray(), ((MapType) type).valueType());
        } else if (type instanceof ObjectType) {
            value(value);
        } else if (value instanceof byte[]) {
            token(new java.math.BigInteger(1, (byte[]) value).toString(16) + " " + ((byte[]) value).length);
        } else {
            token(value);
        }
    }

    private void array(ArrayData data, DataType type) {
        token("[");
        for (int index = 0; index < data.numElements(); index++) {
            typed(data.isNullAt(index) ? null : data.get(index, type), type);
        }
        token("]");
    }
}
