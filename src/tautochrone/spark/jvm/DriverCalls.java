package tautochrone;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

import org.apache.commons.io.IOUtils;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkContext;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.DataFrameReader;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.catalyst.plans.logical.Command;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.trees.TreePatternBits;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.connector.catalog.CatalogManager;
import org.apache.spark.sql.execution.SparkSqlParser;

import py4j.Gateway;
import py4j.reflection.ReflectionEngine;
import scala.Option;
import scala.Product;
import scala.Tuple2;
import scala.collection.IterableOnce;
import scala.collection.Iterator;

/**
 * What Python asks of the driver's JVM often, one message for each answer. In a list of texts each ends with
 * NUL; a text that contains it is refused.
 */
public final class DriverCalls {
    private static final String SEPARATOR = "\0";
    private static final String LOCAL_FILES = "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem";

    private final Gateway gateway;
    private final ReflectionEngine reflection = new ReflectionEngine();
    private final SparkSqlParser parser = new SparkSqlParser();

    public DriverCalls(Gateway gateway) {
        this.gateway = gateway;
    }

    /** The elements of a Scala collection, as `appendObject` writes them. */
    public String elements(IterableOnce collection) {
        StringBuilder text = new StringBuilder();
        Iterator elements = collection.iterator();
        while (elements.hasNext()) {
            appendObject(text, elements.next());
        }
        return text.toString();
    }

    /** Keys and values of a Scala map: key, value, key, value … */
    public String entries(scala.collection.Map map) {
        StringBuilder text = new StringBuilder();
        Iterator entries = map.iterator();
        while (entries.hasNext()) {
            Tuple2 entry = (Tuple2) entries.next();
            append(text, entry._1());
            append(text, entry._2());
        }
        return text.toString();
    }

    /** The names of the fields of a case class. */
    public String fieldNames(Product product) {
        StringBuilder text = new StringBuilder();
        Iterator names = product.productElementNames();
        while (names.hasNext()) {
            append(text, names.next());
        }
        return text.toString();
    }

    /**
     * Make objects one after the other, each of values and of objects before it; `deferred.py` writes them.
     *
     * @param kept for each object `+`, or `-` if Python has dropped it
     * @param texts for each object its class (none: a Scala sequence), the number of its arguments, these
     * @return Py4J's names of the objects that are kept
     */
    public String make(String kept, String texts) {
        List parts = split(texts);
        Object[] objects = new Object[kept.length()];
        StringBuilder names = new StringBuilder();
        int next = 0;
        for (int i = 0; i < objects.length; i++) {
            String type = (String) parts.get(next++);
            Object[] arguments = new Object[Integer.parseInt((String) parts.get(next++))];
            for (int j = 0; j < arguments.length; j++) {
                arguments[j] = argument((String) parts.get(next++), objects);
            }
            if (type.isEmpty()) {
                objects[i] = PythonUtils.toSeq(Arrays.asList(arguments));
            } else {
                objects[i] = reflection.invoke(null, reflection.getConstructor(type, arguments), arguments);
            }
            if (kept.charAt(i) == '+') {
                append(names, gateway.putNewObject(objects[i]));
            }
        }
        return names.toString();
    }

    private Object argument(String text, Object[] objects) {
        String value = text.substring(1);
        switch (text.charAt(0)) {
            case '#':
                return objects[Integer.parseInt(value)];
            case 'o':
                return gateway.getObject(value);
            case 'n':
                return null;
            case 'b':
                return Boolean.valueOf(value);
            case 'i':
                return Integer.valueOf(value);
            case 'l':
                return Long.valueOf(value);
            default:
                return value;
        }
    }

    /** A new object of a class with one constructor, which takes three arguments. */
    public Object newInstance(Class compiled, Object first, Object second, Object third) throws Exception {
        return compiled.getDeclaredConstructors()[0].newInstance(new Object[] {first, second, third});
    }

    public LogicalPlan analyzed(Dataset rows) {
        return rows.queryExecution().analyzed();
    }

    /**
     * CPU time of the tasks of all jobs with a tag, and of what this thread computed without a job (see
     * `DriverScan.java`), in ns. Fails when Spark's status store does not have it (yet, or any more).
     */
    public long tasksNs(SparkContext context, String tag, long timeoutMs) throws Exception {
        context.listenerBus().waitUntilEmpty(timeoutMs);
        Set stages = new HashSet();
        int[] jobs = context.statusTracker().getJobIdsForTag(tag);
        for (int i = 0; i < jobs.length; i++) {
            Iterator each = context.statusStore().job(jobs[i]).stageIds().iterator();
            while (each.hasNext()) {
                stages.add(each.next());
            }
        }
        String withoutJob = context.getLocalProperty("tautochrone.driver-scan.cpu-ns");
        long cpu = withoutJob == null ? 0 : Long.parseLong(withoutJob);
        java.util.Iterator each = stages.iterator();
        while (each.hasNext()) {
            cpu += context.statusStore().lastStageAttempt(((Number) each.next()).intValue()).executorCpuTime();
        }
        return cpu;
    }

    /** A table that is read with options, of which each is a name and a value. */
    public Dataset table(SparkSession session, String name, String options) {
        DataFrameReader reader = session.read();
        java.util.Iterator each = split(options).iterator();
        while (each.hasNext()) {
            reader = reader.option((String) each.next(), (String) each.next());
        }
        return (Dataset) reader.table(name);
    }

    /** The number of rows of a local relation, then its columns as `appendObject` writes them. */
    public String outputAndSize(LocalRelation rows) {
        return rows.data().size() + SEPARATOR + elements(rows.output());
    }

    public Dataset named(Dataset rows, String names) {
        List columns = split(names);
        return (Dataset) rows.toDF((String[]) columns.toArray(new String[columns.size()]));
    }

    public Dataset selected(Dataset rows, String expressions) {
        List columns = split(expressions);
        return (Dataset) rows.selectExpr((String[]) columns.toArray(new String[columns.size()]));
    }

    public LogicalPlan parsed(String sql) {
        return (LogicalPlan) parser.parsePlan(sql);
    }

    /** The parts of a name such as `a.b.c`. */
    public String nameParts(String name) {
        StringBuilder text = new StringBuilder();
        Iterator parts = parser.parseMultipartIdentifier(name).iterator();
        while (parts.hasNext()) {
            append(text, parts.next());
        }
        return text.toString();
    }

    public boolean isCommand(LogicalPlan plan) {
        return plan instanceof Command;
    }

    /** Whether a plan or an expression contains one of Catalyst's tree patterns, by its number. */
    public boolean containsPattern(TreePatternBits tree, int pattern) {
        return tree.treePatternBits().get(pattern);
    }

    /** For each pair of columns, by Py4J's names, whether their types differ in more than in what is never NULL. */
    public String typesDiffer(String names) {
        List parts = split(names);
        StringBuilder text = new StringBuilder();
        for (int i = 0; i + 1 < parts.size(); i += 2) {
            DataType type = ((Expression) gateway.getObject((String) parts.get(i))).dataType();
            DataType other = ((Expression) gateway.getObject((String) parts.get(i + 1))).dataType();
            text.append(type.sameType(other) ? "-" : "+");
        }
        return text.toString();
    }

    /** Numbers of new columns, with commas between them. */
    public String newNumbers(int count) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < count; i++) {
            text.append(i == 0 ? "" : ",").append(NamedExpression$.MODULE$.newExprId().id());
        }
        return text.toString();
    }

    /** What the `ExprId`s of this JVM have in common. */
    public java.util.UUID jvmId() {
        return NamedExpression$.MODULE$.jvmId();
    }

    /** The number of a column. */
    public long columnNumber(NamedExpression column) {
        return column.exprId().id();
    }

    /** The children of a plan or an expression, as `appendObject` writes them. */
    public String children(TreeNode node) {
        return elements(node.children());
    }

    /** Every node of a plan or an expression, parents first, as `appendObject` writes them. */
    public String nodes(TreeNode root) {
        StringBuilder text = new StringBuilder();
        appendNodes(text, root);
        return text.toString();
    }

    private void appendNodes(StringBuilder text, TreeNode node) {
        appendObject(text, node);
        Iterator children = node.children().iterator();
        while (children.hasNext()) {
            appendNodes(text, (TreeNode) children.next());
        }
    }

    /** What Py4J would answer for an object, and the simple name of its class. */
    private void appendObject(StringBuilder text, Object object) {
        append(text, gateway.getReturnObject(object).getCommandPart());
        append(text, object == null ? "" : kind(object));
    }

    /** The simple name of an object's class. */
    public String kind(Object object) {
        return object.getClass().getSimpleName();
    }

    /** What `enter` replaced. */
    public static final class Replaced {
        final org.apache.spark.sql.classic.SparkSession session;
        final Option active;
        final java.util.Map settings = new java.util.LinkedHashMap();
        String catalog;
        String[] namespace;

        Replaced(org.apache.spark.sql.classic.SparkSession session, Option active) {
            this.session = session;
            this.active = active;
        }
    }

    /**
     * Make a session the active one of this thread, with `settings`, and with a current database if a catalog
     * is given. Nothing is replaced if this fails.
     */
    public Replaced enter(
            org.apache.spark.sql.classic.SparkSession session, String settings, String catalog, String namespace) {
        Replaced replaced =
                new Replaced(session, org.apache.spark.sql.classic.SparkSession.getActiveSession());
        // First: Spark configures a catalog permanently from the session that is active when the catalog is
        // first used. With another session active, `lake` would be the wrong catalog.
        org.apache.spark.sql.classic.SparkSession.setActiveSession(session);
        boolean entered = false;
        try {
            List own = split(settings);
            for (int i = 0; i + 1 < own.size(); i += 2) {
                String name = (String) own.get(i);
                String before = session.conf().get(name, (String) null);
                session.conf().set(name, (String) own.get(i + 1));
                replaced.settings.put(name, before);
            }
            if (catalog != null) {
                CatalogManager catalogs = session.sessionState().catalogManager();
                String current = catalogs.currentCatalog().name();
                String[] currentNamespace = catalogs.currentNamespace();
                replaced.catalog = current;
                replaced.namespace = currentNamespace;
                List parts = split(namespace);
                setDatabase(catalogs, catalog, (String[]) parts.toArray(new String[parts.size()]));
            }
            entered = true;
            return replaced;
        } finally {
            if (!entered) {
                leave(replaced);
            }
        }
    }

    /** Restore what `enter` replaced. */
    public void leave(Replaced replaced) {
        try {
            if (replaced.catalog != null) {
                CatalogManager catalogs = replaced.session.sessionState().catalogManager();
                setDatabase(catalogs, replaced.catalog, replaced.namespace);
            }
            java.util.Iterator settings = replaced.settings.entrySet().iterator();
            while (settings.hasNext()) {
                java.util.Map.Entry setting = (java.util.Map.Entry) settings.next();
                if (setting.getValue() == null) {
                    replaced.session.conf().unset((String) setting.getKey());
                } else {
                    replaced.session.conf().set((String) setting.getKey(), (String) setting.getValue());
                }
            }
        } finally {
            if (replaced.active.isDefined()) {
                org.apache.spark.sql.classic.SparkSession.setActiveSession(
                        (org.apache.spark.sql.classic.SparkSession) replaced.active.get());
            } else {
                org.apache.spark.sql.classic.SparkSession.clearActiveSession();
            }
        }
    }

    private void setDatabase(CatalogManager catalogs, String catalog, String[] namespace) {
        if (catalogs.currentCatalog().name().equals(catalog)
                && Arrays.equals(catalogs.currentNamespace(), namespace)) {
            return;
        }
        if (namespace.length == 0) {
            // Spark has no method for "no database"; changing the catalog resets it.
            catalogs.setCurrentCatalog("spark_catalog");
        }
        catalogs.setCurrentCatalog(catalog);
        if (namespace.length > 0) {
            catalogs.setCurrentNamespace(namespace);
        }
    }

    /** Settings of a session: name, value, name, value … */
    public String settings(SparkSession session) {
        return entries(session.conf().getAll());
    }

    /**
     * A new session beside another one, without the settings whose names begin with one of `prefixes`, and
     * with others of its own.
     */
    public SparkSession newSession(SparkSession beside, String prefixes, String settings) {
        SparkSession session = beside.newSession();
        List without = split(prefixes);
        Iterator names = session.conf().getAll().keysIterator();
        while (names.hasNext()) {
            String name = (String) names.next();
            for (int j = 0; j < without.size(); j++) {
                if (name.startsWith((String) without.get(j))) {
                    session.conf().unset(name);
                }
            }
        }
        List own = split(settings);
        for (int i = 0; i + 1 < own.size(); i += 2) {
            session.conf().set((String) own.get(i), (String) own.get(i + 1));
        }
        return session;
    }

    /** The text of a UTF-8 file; null when there is no such file. */
    public String read(Configuration conf, String file) throws IOException {
        Path path = new Path(file);
        FileSystem system = path.getFileSystem(conf);
        if (!system.exists(path)) {
            return null;
        }
        InputStream stream = system.open(path);
        try {
            return IOUtils.toString(stream, StandardCharsets.UTF_8);
        } finally {
            stream.close();
        }
    }

    /**
     * Write a UTF-8 file whole. On file systems whose scheme is not in `storedWhole` it is written as `scratch`
     * beside it first, and renamed over the old one. False: the file system did not rename it.
     */
    public boolean write(Configuration conf, String file, String text, String scratch, String storedWhole)
            throws IOException {
        Path path = new Path(file);
        FileSystem system = writingSystem(path, conf);
        if (split(storedWhole).contains(String.valueOf(system.getUri().getScheme()))) {
            store(system, path, text);
            return true;
        }
        Path other = new Path(path.getParent(), scratch);
        store(system, other, text);
        system.delete(path, false);
        return system.rename(other, path);
    }

    /**
     * The file system that creates files at `path`. The usual one for local files starts a process for each file
     * and folder that it creates, to set its permissions.
     */
    private FileSystem writingSystem(Path path, Configuration conf) throws IOException {
        if (!isLocal(conf, path.toString())) {
            return path.getFileSystem(conf);
        }
        Configuration own = new Configuration(conf);
        own.set("fs.file.impl", LOCAL_FILES);
        own.setBoolean("fs.file.impl.disable.cache", true); // Hadoop's cache ignores settings.
        return path.getFileSystem(own);
    }

    /** Whether `file` is on this machine, and nobody has set another file system for local files. */
    public boolean isLocal(Configuration conf, String file) throws IOException {
        String scheme = new Path(file).getFileSystem(conf).getUri().getScheme();
        return "file".equals(scheme) && conf.get("fs.file.impl") == null;
    }

    private void store(FileSystem system, Path path, String text) throws IOException {
        OutputStream stream = system.create(path, true);
        try {
            stream.write(text.getBytes(StandardCharsets.UTF_8));
        } finally {
            stream.close();
        }
    }

    /** Whether a file, or a folder with all in it, is not there any more. */
    public boolean delete(Configuration conf, String file) throws IOException {
        Path path = new Path(file);
        FileSystem system = path.getFileSystem(conf);
        return system.delete(path, true) || !system.exists(path);
    }

    public boolean exists(Configuration conf, String file) throws IOException {
        Path path = new Path(file);
        return path.getFileSystem(conf).exists(path);
    }

    /** All names in a folder; none when there is no such folder. */
    public String names(Configuration conf, String folder) throws IOException {
        Path path = new Path(folder);
        FileSystem system = path.getFileSystem(conf);
        StringBuilder text = new StringBuilder();
        if (system.exists(path)) {
            FileStatus[] files = system.listStatus(path);
            for (int i = 0; i < files.length; i++) {
                append(text, files[i].getPath().getName());
            }
        }
        return text.toString();
    }

    /**
     * Of each file in a folder: path relative to it, modification time in ms, bytes.
     *
     * @param below those in folders below it too; one that goes while they are listed has none
     * @param without the name of a folder in it that is left out; empty: none is
     */
    public String stamps(Configuration conf, String folder, boolean below, String without) throws IOException {
        Path path = new Path(folder);
        FileSystem system = path.getFileSystem(conf);
        StringBuilder text = new StringBuilder();
        if (system.exists(path)) {
            String root = system.makeQualified(path).toUri().getPath();
            String prefix = root.endsWith("/") ? root : root + "/";
            appendStamps(text, system, system.listStatus(path), prefix, below, without);
        }
        return text.toString();
    }

    private void appendStamps(
            StringBuilder text, FileSystem system, FileStatus[] files, String prefix, boolean below, String without)
            throws IOException {
        // Not `listFiles`: it asks for permissions, for which the local file system starts a process a file.
        for (int i = 0; i < files.length; i++) {
            if (files[i].isDirectory()) {
                if (below && !files[i].getPath().getName().equals(without)) {
                    FileStatus[] inside;
                    try {
                        inside = system.listStatus(files[i].getPath());
                    } catch (FileNotFoundException gone) {
                        continue;
                    }
                    appendStamps(text, system, inside, prefix, below, "");
                }
                continue;
            }
            String name = files[i].getPath().toUri().getPath();
            append(text, name.startsWith(prefix) ? name.substring(prefix.length()) : name);
            append(text, Long.toString(files[i].getModificationTime()));
            append(text, Long.toString(files[i].getLen()));
        }
    }

    private void append(StringBuilder text, Object value) {
        String added = String.valueOf(value);
        if (added.indexOf(SEPARATOR) >= 0) {
            throw new IllegalArgumentException("A text for Python contains NUL"); // The text may be a secret.
        }
        text.append(added).append(SEPARATOR);
    }

    private List split(String texts) {
        String[] parts = texts.split(SEPARATOR, -1);
        return Arrays.asList(parts).subList(0, parts.length - 1);
    }
}
