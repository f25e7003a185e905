package tautochrone;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeMap$;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.Coalesce;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.Statistics;
import org.apache.spark.sql.catalyst.plans.physical.SinglePartition$;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Metadata;

import py4j.Gateway;
import scala.Option;
import scala.collection.immutable.ArraySeq$;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction0;

/**
 * Rows that the driver holds as local relations: the sides of a change, the rows of a state's run, and plans that
 * Spark makes once and that run again with other rows.
 */
public final class DriverPlans {
    private static final String SEPARATOR = "\0";

    /** Few enough for Spark to join them where they are. */
    private static final Statistics FEW_ROWS = new Statistics(
            scala.math.BigInt$.MODULE$.apply(1), Option.empty(), AttributeMap$.MODULE$.empty(), false);

    private final Gateway gateway;

    public DriverPlans(Gateway gateway) {
        this.gateway = gateway;
    }

    // -- rows that the driver holds ----------------------------------------------------------------

    /**
     * The rows of a change with one weight, without it. The weight is the last column, an INT.
     *
     * @param names of the other columns
     */
    public Dataset side(SparkSession session, LocalRelation change, int weight, String names) {
        String[] columns = names.split(SEPARATOR);
        DataType[] types = new DataType[columns.length];
        List output = new ArrayList();
        for (int i = 0; i < columns.length; i++) {
            Attribute column = (Attribute) change.output().apply(i);
            types[i] = column.dataType();
            output.add(column.withName(columns[i]).newInstance());
        }
        UnsafeProjection project = UnsafeProjection.create(types);
        List rows = new ArrayList();
        scala.collection.Iterator each = change.data().iterator();
        while (each.hasNext()) {
            InternalRow row = (InternalRow) each.next();
            if (row.getInt(columns.length) == weight) {
                rows.add(project.apply(row).copy());
            }
        }
        return Dataset.ofRows(session, relation(output, rows));
    }

    /**
     * The rows that a refresh appends to the log of a state: NULL in the column `count` is 0, and a last column
     * numbers the run. A negative `count` is no column.
     *
     * @param names of all columns
     */
    public Dataset ofRun(SparkSession session, LocalRelation update, int count, String names, long run) {
        String[] columns = names.split(SEPARATOR);
        List output = new ArrayList();
        List values = new ArrayList();
        for (int i = 0; i < columns.length - 1; i++) {
            Attribute column = (Attribute) update.output().apply(i);
            output.add(column.withName(columns[i]).newInstance());
            Expression value = new BoundReference(i, column.dataType(), true);
            if (i == count) {
                value = new Coalesce(PythonUtils.toSeq(Arrays.asList(new Object[] {
                    value, Literal$.MODULE$.create(Long.valueOf(0), DataTypes.LongType)})));
            }
            values.add(value);
        }
        values.add(Literal$.MODULE$.create(Long.valueOf(run), DataTypes.LongType));
        output.add(new AttributeReference(
                columns[columns.length - 1], DataTypes.LongType, true, Metadata.empty(),
                NamedExpression$.MODULE$.newExprId(), (Seq) Nil$.MODULE$));
        UnsafeProjection project = UnsafeProjection.create(PythonUtils.toSeq(values));
        List rows = new ArrayList();
        scala.collection.Iterator each = update.data().iterator();
        while (each.hasNext()) {
            rows.add(project.apply((InternalRow) each.next()).copy());
        }
        return Dataset.ofRows(session, relation(output, rows));
    }

    private static LocalRelation relation(List output, List rows) {
        Object[] data = (InternalRow[]) rows.toArray(new InternalRow[rows.size()]);
        return new LocalRelation(
                PythonUtils.toSeq(output), (Seq) ArraySeq$.MODULE$.unsafeWrapArray(data), false, Option.empty());
    }

    // -- plans that run again with other rows --------------------------------------------------------

    /** A physical plan over rows that are given to it each time. */
    public static final class RepeatedPlan {
        final SparkPlan plan;
        final LogicalRDD[] leaves;
        final boolean[] areOfTables;
        final Seq output;

        RepeatedPlan(SparkPlan plan, LogicalRDD[] leaves, boolean[] areOfTables, Seq output) {
            this.plan = plan;
            this.leaves = leaves;
            this.areOfTables = areOfTables;
            this.output = output;
        }
    }

    /**
     * A leaf in the place of some rows, which it does not keep. Nothing about them is known to Spark's optimizer,
     * neither their number nor that a column is never NULL: with other rows the plan is right, too.
     */
    public LogicalRDD leaf(SparkSession session, LocalRelation rows) {
        List output = new ArrayList();
        for (int i = 0; i < rows.output().size(); i++) {
            output.add(((Attribute) rows.output().apply(i)).withNullability(true));
        }
        return new LogicalRDD(
                PythonUtils.toSeq(output), rdd(session, (Seq) Nil$.MODULE$), SinglePartition$.MODULE$,
                (Seq) Nil$.MODULE$, false, Option.empty(), session, Option.apply(FEW_ROWS),
                Option.empty());
    }

    private static RDD rdd(SparkSession session, Seq rows) {
        return session.sparkContext().parallelize(
                rows, 1, scala.reflect.ClassTag$.MODULE$.apply(InternalRow.class));
    }

    /**
     * The plan of a query over such leaves. Null, with a reason, if it is not one task of plain operators.
     *
     * @param names of the leaves, with commas
     * @param tables for each leaf `+` if the names of its columns are those of a table, by which the query takes
     *     them; the columns of other leaves are taken by their order
     */
    public RepeatedPlan repeated(SparkSession session, QueryExecution query, String names, String tables) {
        String[] parts = names.split(",");
        LogicalRDD[] leaves = new LogicalRDD[parts.length];
        boolean[] areOfTables = new boolean[parts.length];
        Set rdds = Collections.newSetFromMap(new IdentityHashMap());
        for (int i = 0; i < parts.length; i++) {
            leaves[i] = (LogicalRDD) gateway.getObject(parts[i]);
            areOfTables[i] = tables.charAt(i) == '+';
            rdds.add(leaves[i].rdd());
        }
        SparkPlan plan = (SparkPlan) SQLConf$.MODULE$.withExistingConf(
                DriverScan.interpreted(session), new Planning(query));
        String operator = DriverScan.operatorOfJobs(plan, rdds);
        if (operator != null) {
            DriverScan.note(DriverScan.reason("OPERATOR_OF_JOBS", "operator", operator));
            return null;
        }
        return new RepeatedPlan(plan, leaves, areOfTables, query.analyzed().output());
    }

    private static final class Planning extends AbstractFunction0 {
        private final QueryExecution query;

        Planning(QueryExecution query) {
            this.query = query;
        }

        public Object apply() {
            return query.executedPlan();
        }
    }

    /**
     * The rows of a plan, as a local relation with other ids of columns. Null if the columns of a leaf have other
     * types than the plan is for, or other names in a table, or, with a reason, if it fails.
     *
     * @param names of the local relations that take the place of the leaves, and the ids of the columns, with commas
     */
    public LocalRelation run(SparkSession session, RepeatedPlan repeated, String names, String ids, int maxBytes) {
        String[] parts = names.split(",");
        Map rdds = new IdentityHashMap();
        for (int i = 0; i < parts.length; i++) {
            LocalRelation rows = (LocalRelation) gateway.getObject(parts[i]);
            if (!areAlike(rows.output(), repeated.leaves[i].output(), repeated.areOfTables[i])) {
                return null;
            }
            rdds.put(repeated.leaves[i].rdd(), rdd(session, rows.data()));
        }
        InternalRow[] rows = (InternalRow[]) SQLConf$.MODULE$.withExistingConf(
                DriverScan.interpreted(session), new Repetition(session, over(repeated.plan, rdds), maxBytes));
        if (rows == null) {
            return null;
        }
        String[] numbers = ids.split(",");
        List output = new ArrayList();
        for (int i = 0; i < numbers.length; i++) {
            ExprId id = new ExprId(Long.parseLong(numbers[i]), NamedExpression$.MODULE$.jvmId());
            output.add(((Attribute) repeated.output.apply(i)).withExprId(id));
        }
        return relation(output, Arrays.asList(rows));
    }

    private static final class Repetition extends AbstractFunction0 {
        private final SparkSession session;
        private final SparkPlan plan;
        private final int maxBytes;

        Repetition(SparkSession session, SparkPlan plan, int maxBytes) {
            this.session = session;
            this.plan = plan;
            this.maxBytes = maxBytes;
        }

        public Object apply() {
            return DriverScan.runHere(session, plan, maxBytes);
        }
    }

    private static boolean areAlike(Seq columns, Seq expected, boolean byName) {
        if (columns.size() != expected.size()) {
            return false;
        }
        for (int i = 0; i < expected.size(); i++) {
            Attribute column = (Attribute) columns.apply(i);
            Attribute other = (Attribute) expected.apply(i);
            if (!column.dataType().equals(other.dataType())) {
                return false;
            }
            if (byName && !column.name().equals(other.name())) {
                return false;
            }
        }
        return true;
    }

    /** A copy of a plan with other leaves. Each node above one is new: a node that ran keeps what it made. */
    private static SparkPlan over(SparkPlan plan, Map rdds) {
        if (plan instanceof RDDScanExec && rdds.containsKey(((RDDScanExec) plan).rdd())) {
            RDDScanExec scan = (RDDScanExec) plan;
            return new RDDScanExec(
                    scan.output(), (RDD) rdds.get(scan.rdd()), scan.name(), scan.outputPartitioning(),
                    scan.outputOrdering(), scan.stream());
        }
        if (plan.children().isEmpty()) {
            return (SparkPlan) plan.clone();
        }
        List children = new ArrayList();
        for (int i = 0; i < plan.children().size(); i++) {
            children.add(over((SparkPlan) plan.children().apply(i), rdds));
        }
        return (SparkPlan) plan.withNewChildren(PythonUtils.toSeq(children));
    }
}
