package tautochrone;

import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;

import org.apache.iceberg.DataFile;
import org.apache.iceberg.HasTableOperations;
import org.apache.iceberg.Schema;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotRef;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.spark.FileRewriteCoordinator;
import org.apache.iceberg.spark.SparkSchemaUtil;
import org.apache.iceberg.spark.source.SparkRewriteTable;
import org.apache.iceberg.types.Types;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.LogicalWriteInfoImpl;
import org.apache.spark.sql.connector.write.PhysicalWriteInfoImpl;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

import py4j.Gateway;
import scala.jdk.javaapi.CollectionConverters;

/**
 * What Python asks of Iceberg often, one message for each answer. Each text of an answer ends with NUL. A value
 * that may be missing has a text before it, `+` or `-`.
 */
public final class IcebergCalls {
    private static final String SEPARATOR = "\0";

    private final Gateway gateway;

    public IcebergCalls(Gateway gateway) {
        this.gateway = gateway;
    }

    /**
     * A table, fresh from its catalog: what Py4J would answer for the table, its operations and its metadata;
     * then the current snapshot's id, when the metadata was made (epoch ms), and the value of a property.
     *
     * Iceberg's Spark code uses the active session of a thread, which only the thread that created the session
     * has, so it is set here.
     */
    public String load(SparkSession session, Catalog catalog, TableIdentifier name, String property) {
        SparkSession.setActiveSession(session);
        Table table = catalog.loadTable(name);
        TableOperations operations = ((HasTableOperations) table).operations();
        TableMetadata metadata = operations.current();
        StringBuilder text = new StringBuilder();
        appendObject(text, table);
        appendObject(text, operations);
        appendObject(text, metadata);
        Snapshot current = metadata.currentSnapshot();
        appendOptional(text, current == null ? null : Long.toString(current.snapshotId()));
        append(text, Long.toString(metadata.lastUpdatedMillis()));
        appendOptional(text, (String) metadata.properties().get(property));
        return text.toString();
    }

    /**
     * The snapshot `version` and those before it, newest first, up to `until` if that is one of them: id, parent,
     * operation, schema, sequence number, time (epoch ms), number of entries of the summary, these.
     */
    public String history(TableMetadata metadata, String version, String until) {
        StringBuilder text = new StringBuilder();
        Snapshot snapshot = metadata.snapshot(Long.parseLong(version));
        while (snapshot != null) {
            String id = Long.toString(snapshot.snapshotId());
            Long parent = snapshot.parentId();
            append(text, id);
            appendOptional(text, parent == null ? null : parent.toString());
            appendOptional(text, snapshot.operation());
            appendOptional(text, snapshot.schemaId() == null ? null : snapshot.schemaId().toString());
            append(text, Long.toString(snapshot.sequenceNumber()));
            append(text, Long.toString(snapshot.timestampMillis()));
            Map summary = snapshot.summary();
            append(text, Integer.toString(summary == null ? 0 : summary.size()));
            Iterator entries = summary == null ? java.util.Collections.emptyIterator() : summary.entrySet().iterator();
            while (entries.hasNext()) {
                Map.Entry entry = (Map.Entry) entries.next();
                append(text, (String) entry.getKey());
                append(text, (String) entry.getValue());
            }
            snapshot = parent == null || id.equals(until) ? null : metadata.snapshot(parent.longValue());
        }
        return text.toString();
    }

    /**
     * The rows of a DataFrame, if they are a local relation that can be written unchanged; else null. They can if
     * they have the table's columns in the same order and with the same types. Otherwise Spark must plan the write,
     * with casts and checks.
     */
    public List localRows(Table table, Dataset rows) {
        LogicalPlan plan = rows.queryExecution().optimizedPlan();
        if (!(plan instanceof LocalRelation)) {
            return null;
        }
        StructType stored = SparkSchemaUtil.convert(table.schema());
        if (!stored.asNullable().equals(rows.schema().asNullable())) {
            return null;
        }
        if (!stored.equals(stored.asNullable()) && !stored.equals(rows.schema())) {
            return null; // A column is NOT NULL, and the local write would not check that.
        }
        return CollectionConverters.asJava(((LocalRelation) plan).data());
    }

    /**
     * Write such rows with the writer that Spark's tasks use: what Py4J would answer for each data file, and its
     * number of rows. They are not committed.
     *
     * @param group names the write
     */
    public String write(SparkSession session, Table table, StructType schema, List rows, String group)
            throws Exception {
        SparkSession.setActiveSession(session);
        Map options = new HashMap();
        // Without the second the writer would mark the files of a sorted table as sorted, which they are not.
        options.put("fanout-enabled", "true");
        options.put("use-table-distribution-and-ordering", "false");
        LogicalWriteInfo info = new LogicalWriteInfoImpl(
                group, schema, new CaseInsensitiveStringMap(options), Optional.empty(), Optional.empty());
        BatchWrite batch = new SparkRewriteTable(table, group).newWriteBuilder(info).build().toBatch();
        DataWriter writer = batch.createBatchWriterFactory(new PhysicalWriteInfoImpl(1)).createWriter(0, 0L);
        WriterCommitMessage written = null;
        try {
            writer.writeAll(rows.iterator());
            written = writer.commit();
        } finally {
            if (written == null) {
                writer.abort();
            }
            writer.close();
        }
        FileRewriteCoordinator coordinator = FileRewriteCoordinator.get();
        try {
            batch.commit(new WriterCommitMessage[] {written});
            StringBuilder text = new StringBuilder();
            Iterator files = coordinator.fetchNewFiles(table, group).iterator();
            while (files.hasNext()) {
                DataFile file = (DataFile) files.next();
                appendObject(text, file);
                append(text, Long.toString(file.recordCount()));
            }
            return text.toString();
        } finally {
            coordinator.clearRewrite(table, group);
        }
    }

    /** What Py4J would answer for each element of a collection. */
    public String elements(Iterable collection) {
        StringBuilder text = new StringBuilder();
        Iterator elements = collection.iterator();
        while (elements.hasNext()) {
            appendObject(text, elements.next());
        }
        return text.toString();
    }

    /** The branches and tags of a table: name, `BRANCH` or `TAG`, id and sequence number of its snapshot. */
    public String references(TableMetadata metadata) {
        StringBuilder text = new StringBuilder();
        Iterator references = metadata.refs().entrySet().iterator();
        while (references.hasNext()) {
            Map.Entry entry = (Map.Entry) references.next();
            SnapshotRef reference = (SnapshotRef) entry.getValue();
            append(text, (String) entry.getKey());
            append(text, reference.isTag() ? "TAG" : "BRANCH");
            append(text, Long.toString(reference.snapshotId()));
            append(text, Long.toString(metadata.snapshot(reference.snapshotId()).sequenceNumber()));
        }
        return text.toString();
    }

    /** The names of the columns of a schema. */
    public String columns(Schema schema) {
        StringBuilder text = new StringBuilder();
        Iterator columns = schema.columns().iterator();
        while (columns.hasNext()) {
            append(text, ((Types.NestedField) columns.next()).name());
        }
        return text.toString();
    }

    private void append(StringBuilder text, String value) {
        if (value.indexOf(SEPARATOR) >= 0) {
            throw new IllegalArgumentException("A text for Python contains NUL"); // The text may be a secret.
        }
        text.append(value).append(SEPARATOR);
    }

    private void appendOptional(StringBuilder text, String value) {
        append(text, value == null ? "-" : "+");
        append(text, value == null ? "" : value);
    }

    private void appendObject(StringBuilder text, Object object) {
        append(text, gateway.getReturnObject(object).getCommandPart());
    }
}
