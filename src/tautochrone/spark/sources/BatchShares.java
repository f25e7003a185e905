package tautochrone;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;

import org.apache.spark.Dependency;
import org.apache.spark.OneToOneDependency;
import org.apache.spark.Partition;
import org.apache.spark.SparkContext;
import org.apache.spark.rdd.CoalescedRDD;
import org.apache.spark.rdd.PartitionPruningRDD;
import org.apache.spark.rdd.RDD;
import org.apache.spark.rdd.UnionRDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.LogicalRDD$;
import org.apache.spark.sql.execution.datasources.v2.DataSourceRDD;
import org.apache.spark.sql.execution.datasources.v2.DataSourceRDDPartition;
import org.apache.spark.sql.kafka010.KafkaBatchInputPartition;
import org.apache.spark.sql.kafka010.KafkaOffsetRange;

import py4j.Gateway;
import scala.Function1;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

/**
 * Shares the records of a batch from Kafka evenly among tasks. All records of the batch, by topic, partition and
 * offset, are one line. It is cut into shares of the same length, and each share is read by one task.
 *
 * Spark reads a partition in one task, or cuts partitions where their topic has few of them, and a task that reads
 * few records is a task all the same. So the line is cut where Spark plans the batch, and short ranges are put
 * together where its rows are written. Only ranges of offsets get other tasks: what the executors run is Spark's.
 */
public final class BatchShares {
    /** A cut that is nearer to an end of a range than this part of a share is left out. */
    private static final double SLACK = 0.05;

    private static final Comparator BY_PARTITION = new Comparator() {
        public int compare(Object a, Object b) {
            int topics = offsets(a).topic().compareTo(offsets(b).topic());
            return topics != 0 ? topics : Integer.compare(offsets(a).partition(), offsets(b).partition());
        }
    };

    public BatchShares(Gateway gateway) {
    }

    /**
     * A table of Kafka whose streams cut long ranges of a batch.
     *
     * @param fewest records for which a further task is worthwhile
     * @param most records of a task
     */
    public Table cutting(Table table, long fewest, long most) {
        return (Table) Cutting.around(table, fewest, most);
    }

    /**
     * The rows of a batch with one task for each share; the same rows if they are not read from Kafka, or not one
     * partition of theirs from each range.
     *
     * @param fewest as of `cutting`
     * @param most as of `cutting`
     * @param ranges of a task, at most: each has an open consumer
     */
    public Dataset grouped(Dataset rows, long fewest, long most, int ranges) {
        if (!(rows.queryExecution().analyzed() instanceof LogicalRDD)) {
            return rows;
        }
        LogicalRDD leaf = (LogicalRDD) rows.queryExecution().analyzed();
        if (!(leaf.outputPartitioning() instanceof UnknownPartitioning) || !leaf.outputOrdering().isEmpty()) {
            return rows;
        }
        List sizes = new ArrayList();
        if (!addSizes(leaf.rdd(), sizes)) {
            return rows;
        }
        long[] lengths = new long[sizes.size()];
        for (int i = 0; i < lengths.length; i++) {
            lengths[i] = ((Long) sizes.get(i)).longValue();
        }
        List ends = ends(lengths, fewest, most, ranges);
        if (ends.size() == lengths.length) {
            return rows;
        }
        ClassTag tag = ClassTag$.MODULE$.apply(InternalRow.class);
        List groups = new ArrayList();
        int first = 0;
        for (Object end : ends) {
            // Executors get the filter too, so it is a set of Scala, which is a function as well.
            Set numbers = new LinkedHashSet();
            for (; first < ((Integer) end).intValue(); first++) {
                numbers.add(Integer.valueOf(first));
            }
            Function1 filter = (Function1) CollectionConverters.asScala(numbers).toSet();
            RDD pruned = new PartitionPruningRDD(leaf.rdd(), filter, tag);
            groups.add(new CoalescedRDD(pruned, 1, Option.empty(), tag));
        }
        Seq all = CollectionConverters.asScala(groups).toSeq();
        RDD union = new UnionRDD(leaf.rdd().context(), all, tag);
        LogicalRDD grouped = LogicalRDD$.MODULE$.fromDataset(union, rows, leaf.isStreaming());
        return Dataset.ofRows(rows.sparkSession(), grouped);
    }

    /**
     * The ranges of a batch by topic and partition, cut where shares end.
     *
     * @param ranges of Kafka
     * @param fewest as of `cutting`
     * @param most as of `cutting`
     */
    public static InputPartition[] cut(InputPartition[] ranges, long fewest, long most) {
        InputPartition[] sorted = (InputPartition[]) ranges.clone();
        Arrays.sort(sorted, BY_PARTITION);
        long records = 0;
        for (int i = 0; i < sorted.length; i++) {
            records += offsets(sorted[i]).size();
        }
        double share = records / (double) shares(records, fewest, most);
        double slack = share * SLACK;
        List pieces = new ArrayList();
        long before = 0;
        for (int i = 0; i < sorted.length; i++) {
            long size = offsets(sorted[i]).size();
            long from = 0;
            for (long n = (long) (before / share) + 1; n * share < before + size; n++) {
                long at = Math.round(n * share) - before;
                if (at - from > slack && size - at > slack) {
                    pieces.add(piece(sorted[i], from, at));
                    from = at;
                }
            }
            pieces.add(from == 0 ? sorted[i] : piece(sorted[i], from, size));
            before += size;
        }
        return (InputPartition[]) pieces.toArray(new InputPartition[0]);
    }

    private static InputPartition piece(InputPartition range, long from, long until) {
        KafkaBatchInputPartition input = (KafkaBatchInputPartition) range;
        KafkaOffsetRange whole = input.offsetRange();
        // Without a preferred executor, as Spark cuts: else all pieces would go to the same one.
        KafkaOffsetRange offsets = new KafkaOffsetRange(whole.topicPartition(), whole.fromOffset() + from,
                whole.fromOffset() + until, Option.empty());
        return input.copy(offsets, input.executorKafkaParams(), input.pollTimeoutMs(), input.failOnDataLoss(),
                input.includeHeaders());
    }

    private static KafkaOffsetRange offsets(Object range) {
        return ((KafkaBatchInputPartition) range).offsetRange();
    }

    /**
     * Of each group the number of the range behind it.
     *
     * @param sizes of the ranges, in records
     */
    public static List ends(long[] sizes, long fewest, long most, int ranges) {
        long records = 0;
        for (int i = 0; i < sizes.length; i++) {
            records += sizes[i];
        }
        double share = records / (double) shares(records, fewest, most);
        List ends = new ArrayList();
        long before = 0;
        long number = -1;
        int first = 0;
        for (int i = 0; i < sizes.length; i++) {
            long own = (long) ((before + sizes[i] / 2.0) / share);
            if (i > first && (own != number || i - first == ranges)) {
                ends.add(Integer.valueOf(i));
                first = i;
            }
            number = own;
            before += sizes[i];
        }
        ends.add(Integer.valueOf(sizes.length));
        return ends;
    }

    /** Into how many shares a batch is cut. */
    private static long shares(long records, long fewest, long most) {
        long cores = SparkContext.getOrCreate().defaultParallelism();
        return Math.max(1, Math.max(Math.min(cores, ceil(records, fewest)), ceil(records, most)));
    }

    private static long ceil(long number, long divisor) {
        return (number + divisor - 1) / divisor;
    }

    /** Adds the number of records of each partition; false: it is not known of all. */
    private static boolean addSizes(RDD rdd, List sizes) {
        if (rdd instanceof DataSourceRDD) {
            Partition[] partitions = rdd.partitions();
            for (int i = 0; i < partitions.length; i++) {
                long size = 0;
                Iterator inputs = ((DataSourceRDDPartition) partitions[i]).inputPartitions().iterator();
                while (inputs.hasNext()) {
                    Object input = inputs.next();
                    if (!(input instanceof KafkaBatchInputPartition)) {
                        return false;
                    }
                    size += ((KafkaBatchInputPartition) input).offsetRange().size();
                }
                sizes.add(Long.valueOf(size));
            }
            return true;
        }
        Seq dependencies = rdd.dependencies();
        if (rdd instanceof UnionRDD) {
            for (int i = 0; i < dependencies.size(); i++) {
                if (!addSizes(((Dependency) dependencies.apply(i)).rdd(), sizes)) {
                    return false;
                }
            }
            return true;
        }
        if (dependencies.size() != 1 || !(dependencies.head() instanceof OneToOneDependency)) {
            return false;
        }
        return addSizes(((Dependency) dependencies.head()).rdd(), sizes);
    }

    /** A table, scan or stream that is as `target`, except that a batch's long ranges are cut. */
    static final class Cutting implements InvocationHandler {
        private static final List WRAPPED = Arrays.asList(new Object[] {
            "newScanBuilder", "build", "toMicroBatchStream"});

        private final Object target;
        private final long fewest;
        private final long most;

        private Cutting(Object target, long fewest, long most) {
            this.target = target;
            this.fewest = fewest;
            this.most = most;
        }

        static Object around(Object target, long fewest, long most) {
            Set interfaces = new LinkedHashSet();
            for (Class c = target.getClass(); c != null; c = c.getSuperclass()) {
                interfaces.addAll(Arrays.asList(c.getInterfaces()));
            }
            Class[] types = (Class[]) interfaces.toArray(new Class[0]);
            InvocationHandler handler = new Cutting(target, fewest, most);
            return Proxy.newProxyInstance(target.getClass().getClassLoader(), types, handler);
        }

        public Object invoke(Object proxy, Method method, Object[] arguments) throws Throwable {
            if (method.getName().equals("equals") && arguments.length == 1) {
                return Boolean.valueOf(target.equals(unwrapped(arguments[0])));
            }
            Object answer;
            try {
                answer = method.invoke(target, arguments);
            } catch (InvocationTargetException e) {
                throw e.getCause();
            }
            if (WRAPPED.contains(method.getName())) {
                return around(answer, fewest, most);
            }
            if (method.getName().equals("planInputPartitions") && arguments.length == 2) {
                return cut((InputPartition[]) answer, fewest, most);
            }
            return answer;
        }

        private static Object unwrapped(Object other) {
            if (other == null || !Proxy.isProxyClass(other.getClass())) {
                return other;
            }
            InvocationHandler handler = Proxy.getInvocationHandler(other);
            return handler instanceof Cutting ? ((Cutting) handler).target : other;
        }
    }
}
