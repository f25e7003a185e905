package tautochrone;

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.atomic.AtomicLong;

import org.apache.spark.Dependency;
import org.apache.spark.Partition;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext$;
import org.apache.spark.TaskContextImpl;
import org.apache.spark.executor.TaskMetrics;
import org.apache.spark.memory.SparkOutOfMemoryError;
import org.apache.spark.memory.TaskMemoryManager;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.EliminateSubqueryAliases;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.BasePredicate;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Predicate$;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.planning.PhysicalOperation;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.LocalTableScanExec;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.SQLExecution$;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.TakeOrderedAndProjectExec;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.PushDownUtils;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

import py4j.Gateway;
import scala.Option;
import scala.Tuple2;
import scala.Tuple3;
import scala.collection.immutable.ArraySeq$;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction0;

/**
 * Computes few rows in the driver, without a job: rows of a table, by the readers that Spark's tasks use and
 * without a plan; and the result of a plan that would be one task.
 *
 * A plan is read here if it only filters rows of one table and picks columns, by expressions that Spark
 * evaluates as they stand. `null` stands for all others, and for reads that fail or are too large: Spark
 * repeats them, and raises what there is to raise. `takeReasons` tells why.
 */
public final class DriverScan {
    private static final String SEPARATOR = "\0";
    private static final int MAX_SPLITS = 16;
    private static final int MAX_REASONS = 20;
    private static final String NOT_SIMPLE = "READ_NOT_SIMPLE";
    private static final Set EVALUATED_AS_THEY_STAND = new HashSet(Arrays.asList(new String[] {
        "AttributeReference", "Alias", "Literal", "Cast", "In", "InSet", "EqualTo", "EqualNullSafe",
        "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "And", "Or", "Not", "IsNull",
        "IsNotNull"}));
    private static final Set PLAIN_OPERATORS = new HashSet(Arrays.asList(new String[] {
        "LocalTableScanExec", "ProjectExec", "FilterExec", "CoalesceExec", "UnionExec", "HashAggregateExec",
        "SortAggregateExec", "ObjectHashAggregateExec", "ShuffledHashJoinExec", "SortMergeJoinExec", "SortExec",
        "TakeOrderedAndProjectExec", "WindowExec", "ExpandExec", "GenerateExec", "LocalLimitExec",
        "WholeStageCodegenExec", "InputAdapter"}));
    private static final String[][] INTERPRETED = {
        {"spark.sql.codegen.wholeStage", "false"}, {"spark.sql.codegen.factoryMode", "NO_CODEGEN"}};
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
    private static final String CPU_TIME = "tautochrone.driver-scan.cpu-ns";
    private static final AtomicLong TASKS = new AtomicLong(Long.MAX_VALUE);
    private static final String ENTRY = "\1";
    private static final ThreadLocal REASONS = new ThreadLocal();

    public DriverScan(Gateway gateway) {
    }

    /**
     * All rows of a query. They are computed here if they are few rows of one table, or if the query is one
     * task of plain operators; by a job of Spark otherwise.
     */
    public InternalRow[] collect(SparkSession session, QueryExecution query, int maxRows, int maxBytes) {
        Collected collected = new Collected(maxBytes);
        String reason = read(session, query.analyzed(), maxRows, collected);
        if (reason == null) {
            return collected.rows();
        }
        SQLConf settings = isHeld(query.analyzed()) ? interpreted(session) : session.sessionState().conf().clone();
        // Of this thread: another one may use the session. Without the second a job's tasks lack the settings.
        Execution execution = new Execution(session, query, maxBytes, reason);
        return (InternalRow[]) SQLConf$.MODULE$.withExistingConf(settings, new Propagated(session, execution));
    }

    private static final class Propagated extends AbstractFunction0 {
        private final SparkSession session;
        private final Execution execution;

        Propagated(SparkSession session, Execution execution) {
            this.session = session;
            this.execution = execution;
        }

        public Object apply() {
            return SQLExecution$.MODULE$.withSQLConfPropagated(session, execution);
        }
    }

    /** A session's settings for a plan over few rows: to compile it would take longer than to run it. */
    public static SQLConf interpreted(SparkSession session) {
        SQLConf settings = session.sessionState().conf().clone();
        for (int i = 0; i < INTERPRETED.length; i++) {
            settings.setConfString(INTERPRETED[i][0], INTERPRETED[i][1]);
        }
        return settings;
    }

    /** Whether a plan reads nothing but rows of the driver: for so few to compile code takes longer. */
    private static boolean isHeld(LogicalPlan plan) {
        Seq children = (Seq) plan.children();
        for (int i = 0; i < children.size(); i++) {
            if (!isHeld((LogicalPlan) children.apply(i))) {
                return false;
            }
        }
        return plan.subqueries().isEmpty() && (!children.isEmpty() || plan instanceof LocalRelation);
    }

    private static final class Execution extends AbstractFunction0 {
        private final SparkSession session;
        private final QueryExecution query;
        private final int maxBytes;
        private final String notRead;

        /** @param notRead why its rows are not read by `read` */
        Execution(SparkSession session, QueryExecution query, int maxBytes, String notRead) {
            this.session = session;
            this.query = query;
            this.maxBytes = maxBytes;
            this.notRead = notRead;
        }

        public Object apply() {
            SparkPlan plan = query.executedPlan();
            if (plan instanceof LocalTableScanExec) {
                return plan.executeCollect();
            }
            String operator = operatorOfJobs(plan, Collections.EMPTY_SET);
            if (operator == null) {
                // A copy: a sort that ran keeps its sorter, and could not be sent to a task any more.
                InternalRow[] rows = runHere(session, (SparkPlan) plan.clone(), maxBytes);
                if (rows != null) {
                    return rows;
                }
            } else {
                note(notRead.startsWith(NOT_SIMPLE) ? reason("OPERATOR_OF_JOBS", "operator", operator) : notRead);
            }
            return plan.executeCollect();
        }

    }

    /** Rows of a plan that is one task, computed in this thread; null if that fails: a job repeats it. */
    public static InternalRow[] runHere(SparkSession session, SparkPlan plan, int maxBytes) {
        RDD rdd = plan.execute();
        Partition[] partitions = rdd.partitions();
        if (partitions.length != 1) {
            note(reason("SEVERAL_TASKS", "tasks", partitions.length));
            return null;
        }
        if (isShuffled(rdd)) {
            note(reason("OPERATOR_OF_JOBS", "operator", plan.nodeName()));
            return null;
        }
        long task = TASKS.getAndDecrement();
        TaskMemoryManager memory = new TaskMemoryManager(SparkEnv.get().memoryManager(), task);
        Properties settings = (Properties) session.sparkContext().getLocalProperties().clone();
        for (int i = 0; i < INTERPRETED.length; i++) {
            settings.setProperty(INTERPRETED[i][0], SQLConf$.MODULE$.get().getConfString(INTERPRETED[i][0]));
        }
        TaskContextImpl context = new TaskContextImpl(
                0, 0, 0, task, 0, 1, memory, settings, SparkEnv.get().metricsSystem(), TaskMetrics.empty(), 1,
                scala.collection.immutable.Map$.MODULE$.empty());
        long started = THREADS.getCurrentThreadCpuTime();
        TaskContext$.MODULE$.setTaskContext(context);
        try {
            List rows = new ArrayList();
            long bytes = 0;
            scala.collection.Iterator each = rdd.iterator(partitions[0], context);
            while (each.hasNext()) {
                UnsafeRow row = (UnsafeRow) each.next();
                bytes += row.getSizeInBytes();
                if (bytes > maxBytes) {
                    // A job sends its results packed, and up to a limit that users set.
                    note(reason("RESULT_LARGE", "limit", maxBytes));
                    return null;
                }
                rows.add(row.copy());
            }
            return (InternalRow[]) rows.toArray(new InternalRow[rows.size()]);
        } catch (Exception error) {
            note(reason("COMPUTING_FAILED", "text", error.toString()));
            return null;
        } catch (SparkOutOfMemoryError error) {
            note(reason("COMPUTING_FAILED", "text", error.toString()));
            return null;
        } finally {
            try {
                context.markTaskCompleted(Option.empty());
            } finally {
                TaskContext$.MODULE$.unset();
                memory.cleanUpAllAllocatedMemory();
                count(session, started);
            }
        }
    }

    /**
     * An operator of a plan that needs more than its task's memory and rows of the driver; null if none does.
     *
     * @param rdds of rows of the driver
     */
    public static String operatorOfJobs(SparkPlan plan, Set rdds) {
        if (plan instanceof RDDScanExec && rdds.contains(((RDDScanExec) plan).rdd())) {
            return null;
        }
        if (!PLAIN_OPERATORS.contains(plan.getClass().getSimpleName()) || !plan.subqueries().isEmpty()) {
            return plan.nodeName();
        }
        Seq children = (Seq) plan.children();
        for (int i = 0; i < children.size(); i++) {
            String operator = operatorOfJobs((SparkPlan) children.apply(i), rdds);
            if (operator != null) {
                return operator;
            }
        }
        // It shuffles the first rows of several partitions. A copy tells: what ran cannot be sent to a task.
        return plan instanceof TakeOrderedAndProjectExec && isShuffled(((SparkPlan) plan.clone()).execute())
                ? plan.nodeName() : null;
    }

    /** Whether rows come out of a shuffle. Without the job that fills it, it is empty. */
    private static boolean isShuffled(RDD rdd) {
        Seq dependencies = (Seq) rdd.dependencies();
        for (int i = 0; i < dependencies.size(); i++) {
            Dependency dependency = (Dependency) dependencies.apply(i);
            if (dependency instanceof ShuffleDependency || isShuffled(dependency.rdd())) {
                return true;
            }
        }
        return false;
    }

    // -- why a job did something -------------------------------------------------------------------

    public static String reason(String code, String parameter, Object value) {
        return code + and(parameter, value);
    }

    private static String and(String parameter, Object value) {
        return SEPARATOR + parameter + SEPARATOR + value.toString().replace(SEPARATOR, " ").replace(ENTRY, " ");
    }

    /** Tell the thread's next `takeReasons` why something is left to a job. */
    public static void note(String reason) {
        Set reasons = (Set) REASONS.get();
        if (reasons == null) {
            reasons = new LinkedHashSet();
            REASONS.set(reasons);
        }
        if (reasons.size() < MAX_REASONS) {
            reasons.add(reason);
        }
    }

    /** Why this thread left something to a job since the last call; each: code, then names and values. */
    public String takeReasons() {
        Set reasons = (Set) REASONS.get();
        REASONS.remove();
        return reasons == null ? "" : String.join(ENTRY, reasons);
    }

    /**
     * The same rows, read now and held as a local relation; null if they are not read here, if the scan has more
     * than `maxRows`, or if they are larger than `maxBytes`.
     */
    public Dataset held(SparkSession session, Dataset frame, int maxRows, int maxBytes) {
        LogicalPlan plan = frame.queryExecution().analyzed();
        Collected collected = new Collected(maxBytes);
        String reason = read(session, plan, maxRows, collected);
        if (reason != null) {
            note(reason);
            return null;
        }
        Seq data = (Seq) ArraySeq$.MODULE$.unsafeWrapArray(collected.rows());
        return Dataset.ofRows(session, new LocalRelation(plan.output(), data, false, Option.empty()));
    }

    /**
     * The rows of two local relations, with the columns of the first. Null if they are too many or too large, or
     * if the columns differ in more than in what is never NULL.
     */
    public Dataset union(SparkSession session, Dataset before, Dataset appended, int maxRows, int maxBytes) {
        LogicalPlan first = before.queryExecution().analyzed();
        LogicalPlan second = appended.queryExecution().analyzed();
        if (!(first instanceof LocalRelation) || !(second instanceof LocalRelation)
                || !first.schema().asNullable().equals(second.schema().asNullable())) {
            return null;
        }
        Seq data = (Seq) ((LocalRelation) first).data().concat(((LocalRelation) second).data());
        LocalRelation rows = new LocalRelation(first.output(), data, false, Option.empty());
        return data.size() > maxRows || bytes(rows) > maxBytes ? null : Dataset.ofRows(session, rows);
    }

    /** The size of held rows in memory. */
    public long heldBytes(Dataset rows) {
        return bytes((LocalRelation) rows.queryExecution().analyzed());
    }

    /** The same held rows with other ids of columns. */
    public Dataset withNewIds(SparkSession session, Dataset rows) {
        return Dataset.ofRows(session, ((LocalRelation) rows.queryExecution().analyzed()).newInstance());
    }

    /** The size of rows in memory; the largest number if they are not all in Spark's binary form. */
    private static long bytes(LocalRelation rows) {
        long bytes = 0;
        scala.collection.Iterator each = rows.data().iterator();
        while (each.hasNext()) {
            Object row = each.next();
            if (!(row instanceof UnsafeRow)) {
                return Long.MAX_VALUE;
            }
            bytes += ((UnsafeRow) row).getSizeInBytes();
        }
        return bytes;
    }

    /**
     * Where copies of some rows are stored: file, positions with commas between them, file, positions … The first
     * copies are taken where a table has several. Null if not every row is stored with the same bytes, which the
     * same sum of floats in another order need not be.
     *
     * @param removed few rows that the driver holds
     * @param table the same columns, then the file's name and the position in it
     */
    public String positions(SparkSession session, Dataset removed, Dataset table, int maxRows) {
        StructType types = removed.schema();
        InternalRow[] rows = removed.queryExecution().executedPlan().executeCollect();
        LogicalPlan stored = table.queryExecution().analyzed();
        StructField[] columns = stored.schema().fields();
        int width = columns.length - 2;
        if (width != types.fields().length) {
            throw new IllegalArgumentException(width + " columns are stored, not " + types.fields().length);
        }
        DataType[] keys = new DataType[width];
        for (int i = 0; i < width; i++) {
            keys[i] = columns[i].dataType();
            if (!keys[i].catalogString().equals(types.fields()[i].dataType().catalogString())) {
                note(reason("ROWS_OF_OTHER_TYPES", "column", columns[i].name()));
                return null;
            }
        }
        UnsafeProjection key = UnsafeProjection.create(keys);
        Map missing = new HashMap();
        for (int i = 0; i < rows.length; i++) {
            UnsafeRow row = key.apply(rows[i]).copy();
            Integer copies = (Integer) missing.get(row);
            missing.put(row, Integer.valueOf(copies == null ? 1 : copies.intValue() + 1));
        }
        Matched matched = new Matched(missing, key, width);
        String reason = read(session, stored, maxRows, matched);
        if (reason != null) {
            note(reason);
            return null;
        }
        List matches = matched.matches;
        Collections.sort(matches, new InOrder());
        StringBuilder text = new StringBuilder();
        String file = null;
        int count = 0;
        Iterator each = matches.iterator();
        while (each.hasNext()) {
            Match match = (Match) each.next();
            int copies = ((Integer) missing.get(match.row)).intValue();
            if (copies > 0) {
                missing.put(match.row, Integer.valueOf(copies - 1));
                if (match.file.equals(file)) {
                    text.append(",");
                } else {
                    text.append(file == null ? "" : SEPARATOR).append(match.file).append(SEPARATOR);
                    file = match.file;
                }
                text.append(match.position);
                count++;
            }
        }
        if (count < rows.length) {
            note(reason("ROWS_NOT_STORED_ALIKE", "rows", rows.length - count));
            return null;
        }
        return text.append(file == null ? "" : SEPARATOR).toString();
    }

    /** Add the CPU time of this thread since `started` to what `MeteredJobs` counts. */
    private static void count(SparkSession session, long started) {
        String before = session.sparkContext().getLocalProperty(CPU_TIME);
        long used = THREADS.getCurrentThreadCpuTime() - started + (before == null ? 0 : Long.parseLong(before));
        session.sparkContext().setLocalProperty(CPU_TIME, Long.toString(used));
    }

    /** What a read does with each row, whose memory the next row takes: null, or a reason that ends it. */
    private interface Reader {
        String row(UnsafeRow row);
    }

    private static final class Collected implements Reader {
        final List rows = new ArrayList();
        private final int maxBytes;
        private long bytes = 0;

        Collected(int maxBytes) {
            this.maxBytes = maxBytes;
        }

        InternalRow[] rows() {
            return (InternalRow[]) rows.toArray(new InternalRow[rows.size()]);
        }

        public String row(UnsafeRow row) {
            bytes += row.getSizeInBytes();
            rows.add(row.copy());
            return bytes <= maxBytes ? null : reason("READ_ROWS_LARGE", "limit", maxBytes);
        }
    }

    private static final class Matched implements Reader {
        final List matches = new ArrayList();
        private final Map removed;
        private final UnsafeProjection key;
        private final int width;

        Matched(Map removed, UnsafeProjection key, int width) {
            this.removed = removed;
            this.key = key;
            this.width = width;
        }

        public String row(UnsafeRow row) {
            UnsafeRow values = key.apply(row);
            if (removed.containsKey(values)) {
                matches.add(new Match(values.copy(), row.getUTF8String(width).toString(), row.getLong(width + 1)));
            }
            return null;
        }
    }

    private static final class Match {
        final UnsafeRow row;
        final String file;
        final long position;

        Match(UnsafeRow row, String file, long position) {
            this.row = row;
            this.file = file;
            this.position = position;
        }
    }

    private static final class InOrder implements Comparator {
        public int compare(Object left, Object right) {
            int files = ((Match) left).file.compareTo(((Match) right).file);
            return files != 0 ? files : Long.compare(((Match) left).position, ((Match) right).position);
        }
    }

    /** Null if all rows of a plan were read here, otherwise the reason why not. */
    private String read(SparkSession session, LogicalPlan plan, int maxRows, Reader reader) {
        Option matched = PhysicalOperation.unapply(EliminateSubqueryAliases.apply(plan));
        if (matched.isEmpty()) {
            return notSimple(plan);
        }
        Tuple3 operation = (Tuple3) matched.get();
        Seq columns = (Seq) operation._1();
        Seq filters = (Seq) operation._2();
        if (!(operation._3() instanceof DataSourceV2Relation)) {
            return notSimple(operation._3());
        }
        DataSourceV2Relation relation = (DataSourceV2Relation) operation._3();
        if (!(relation.table() instanceof SupportsRead)) {
            return notSimple(relation.table());
        }
        Expression unknown = unknown(columns);
        unknown = unknown == null ? unknown(filters) : unknown;
        if (unknown != null) {
            return notSimple(unknown);
        }
        String table = relation.table().name();
        long started = THREADS.getCurrentThreadCpuTime();
        Option before = SparkSession.getActiveSession();
        SparkSession.setActiveSession(session);
        try {
            ScanBuilder builder = ((SupportsRead) relation.table()).newScanBuilder(relation.options());
            PushDownUtils.pushFilters(builder, filters);
            Tuple2 pruned = PushDownUtils.pruneColumns(builder, relation, columns, filters);
            Seq input = (Seq) pruned._2();
            UnsafeProjection project = UnsafeProjection.create(columns, input);
            project.initialize(0);
            BasePredicate condition = conditionOf(filters, input);
            return readAll(((Scan) pruned._1()).toBatch(), table, condition, project, maxRows, reader);
        } catch (Exception error) {
            // Spark repeats the read and says what is wrong with it.
            return reason("READ_FAILED", "text", error.toString()) + and("table", table);
        } finally {
            count(session, started);
            if (before.isDefined()) {
                SparkSession.setActiveSession((SparkSession) before.get());
            } else {
                SparkSession.clearActiveSession();
            }
        }
    }

    private static String notSimple(Object part) {
        return reason(NOT_SIMPLE, "part", part.getClass().getSimpleName());
    }

    /** Null if all rows were read, otherwise the reason why not. */
    private static String readAll(
            Batch batch, String table, BasePredicate condition, UnsafeProjection project, int maxRows, Reader rows)
            throws Exception {
        InputPartition[] splits = batch.planInputPartitions();
        if (splits.length > MAX_SPLITS) {
            return reason("READ_IN_MANY_SPLITS", "splits", splits.length) + and("limit", MAX_SPLITS)
                    + and("table", table);
        }
        PartitionReaderFactory readers = batch.createReaderFactory();
        int left = maxRows;
        for (int i = 0; i < splits.length && left >= 0; i++) {
            boolean columnar = readers.supportColumnarReads(splits[i]);
            PartitionReader reader =
                    columnar ? readers.createColumnarReader(splits[i]) : readers.createReader(splits[i]);
            try {
                while (left >= 0 && reader.next()) {
                    Iterator batchRows = columnar
                            ? ((ColumnarBatch) reader.get()).rowIterator()
                            : Collections.singletonList(reader.get()).iterator();
                    while (batchRows.hasNext() && left-- > 0) {
                        InternalRow row = (InternalRow) batchRows.next();
                        if (condition == null || condition.eval(row)) {
                            String reason = rows.row(project.apply(row));
                            if (reason != null) {
                                return reason + and("table", table);
                            }
                        }
                    }
                }
            } finally {
                reader.close();
            }
        }
        return left >= 0 ? null : reason("READ_MANY_ROWS", "limit", maxRows) + and("table", table);
    }

    private static BasePredicate conditionOf(Seq filters, Seq input) {
        Expression all = null;
        for (int i = 0; i < filters.size(); i++) {
            Expression filter = (Expression) filters.apply(i);
            all = all == null ? filter : new And(all, filter);
        }
        if (all == null) {
            return null;
        }
        BasePredicate condition = Predicate$.MODULE$.create(all, input);
        condition.initialize(0);
        return condition;
    }

    /** The first of some expressions that is not evaluated here; null if all are. */
    private static Expression unknown(Seq expressions) {
        for (int i = 0; i < expressions.size(); i++) {
            Expression expression = (Expression) expressions.apply(i);
            if (!EVALUATED_AS_THEY_STAND.contains(expression.getClass().getSimpleName())
                    || !expression.resolved()) {
                return expression;
            }
            Expression below = unknown((Seq) expression.children());
            if (below != null) {
                return below;
            }
        }
        return null;
    }
}
