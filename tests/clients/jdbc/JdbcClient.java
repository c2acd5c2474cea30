import java.io.ByteArrayInputStream;
import java.math.BigDecimal;
import java.sql.*;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.util.*;

/**
 * The MariaDB JDBC driver, unchanged. One argument: the JDBC URL of an empty database.
 * Prints "N passed, N failed".
 */
public class JdbcClient {
    interface Test {
        void run(Connection connection) throws Exception;
    }

    static void check(boolean condition, Object what) {
        if (!condition) throw new AssertionError(String.valueOf(what));
    }

    static void execute(Connection connection, String... statements) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            for (String sql : statements) statement.execute(sql);
        }
    }

    static long number(Connection connection, String query) throws SQLException {
        try (Statement statement = connection.createStatement(); ResultSet rows = statement.executeQuery(query)) {
            check(rows.next(), query);
            return rows.getLong(1);
        }
    }

    /** Every column type that Java has a class for, by a prepared statement there and back. */
    static void values(Connection connection) throws Exception {
        execute(connection, "CREATE TABLE t (id BIGINT AUTO_INCREMENT PRIMARY KEY, d DECIMAL(20,4), day DATE,"
            + " moment DATETIME(6), text VARCHAR(200) CHARACTER SET utf8mb4, bytes LONGBLOB, real_number DOUBLE, KEY (text))");
        byte[] bytes = new byte[2_000_000];
        new Random(1).nextBytes(bytes);
        String text = "Flut und Ebbe \uD83C\uDF0A\uD83E\uDD80 潮";
        LocalDateTime moment = LocalDateTime.of(2024, 2, 29, 12, 34, 56, 789_012_000);
        try (PreparedStatement insert = connection.prepareStatement(
                "INSERT INTO t (d, day, moment, text, bytes, real_number) VALUES (?, ?, ?, ?, ?, ?)",
                Statement.RETURN_GENERATED_KEYS)) {
            insert.setBigDecimal(1, new BigDecimal("-1234567890123456.7891"));
            insert.setObject(2, LocalDate.of(1969, 7, 20));
            insert.setObject(3, moment);
            insert.setString(4, text);
            insert.setBinaryStream(5, new ByteArrayInputStream(bytes));
            insert.setDouble(6, Math.PI);
            check(insert.executeUpdate() == 1, "one row");
            for (int column = 1; column <= 6; column++) insert.setNull(column, Types.NULL);
            insert.executeUpdate();
            try (ResultSet keys = insert.getGeneratedKeys()) {
                check(keys.next() && keys.getLong(1) == 2, "the generated key");
            }
        }
        try (PreparedStatement select = connection.prepareStatement("SELECT * FROM t WHERE text = ?")) {
            select.setString(1, text);
            try (ResultSet row = select.executeQuery()) {
                check(row.next(), "the row is found by its text");
                check(row.getBigDecimal("d").equals(new BigDecimal("-1234567890123456.7891")), row.getBigDecimal("d"));
                check(row.getObject("day", LocalDate.class).equals(LocalDate.of(1969, 7, 20)), "day");
                check(row.getObject("moment", LocalDateTime.class).equals(moment), row.getObject("moment"));
                check(Arrays.equals(row.getBytes("bytes"), bytes), "bytes");
                check(row.getDouble("real_number") == Math.PI, "double");
                check(!row.next(), "one row only");
            }
        }
        check(number(connection, "SELECT COUNT(*) FROM t WHERE bytes IS NULL AND d IS NULL") == 1, "the row of NULLs");
    }

    static void batches(Connection connection) throws Exception {
        execute(connection, "CREATE TABLE t (id INT PRIMARY KEY, v INT, KEY (v))");
        connection.setAutoCommit(false);
        try (PreparedStatement insert = connection.prepareStatement("INSERT INTO t VALUES (?, ?)")) {
            for (int id = 0; id < 10_000; id++) {
                insert.setInt(1, id);
                insert.setInt(2, id % 100);
                insert.addBatch();
            }
            check(insert.executeBatch().length == 10_000, "the batch");
        }
        connection.commit();
        check(number(connection, "SELECT COUNT(*) FROM t WHERE v = 42") == 100, "rows by the index");
    }

    static void transactions(Connection connection) throws Exception {
        execute(connection, "CREATE TABLE t (id INT PRIMARY KEY)");
        connection.setAutoCommit(false);
        execute(connection, "INSERT INTO t VALUES (1)");
        Savepoint savepoint = connection.setSavepoint("here");
        execute(connection, "INSERT INTO t VALUES (2)");
        connection.rollback(savepoint);
        execute(connection, "INSERT INTO t VALUES (3)");
        connection.commit();
        execute(connection, "DELETE FROM t");
        connection.rollback();
        check(number(connection, "SELECT SUM(id) FROM t") == 4, "the rows 1 and 3");
        try {
            execute(connection, "INSERT INTO t VALUES (4), (1)");
            throw new AssertionError("key 1 was stored twice");
        } catch (SQLIntegrityConstraintViolationException expected) {
            check(expected.getErrorCode() == 1062, expected);
        }
        connection.commit();
        check(number(connection, "SELECT COUNT(*) FROM t") == 2, "the failed statement left nothing");
    }

    /** A result set that can be updated, and one that streams. */
    static void resultSets(Connection connection) throws Exception {
        execute(connection, "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
            "INSERT INTO t SELECT seq, seq FROM seq_1_to_5000");
        try (Statement statement = connection.createStatement(ResultSet.TYPE_SCROLL_INSENSITIVE, ResultSet.CONCUR_UPDATABLE);
             ResultSet rows = statement.executeQuery("SELECT id, v FROM t WHERE id = 7")) {
            check(rows.next(), "row 7");
            rows.updateInt("v", -7);
            rows.updateRow();
        }
        long sum = 0;
        try (Statement statement = connection.createStatement()) {
            statement.setFetchSize(100);
            try (ResultSet rows = statement.executeQuery("SELECT v FROM t ORDER BY id DESC")) {
                while (rows.next()) sum += rows.getInt(1);
            }
        }
        check(sum == 5000L * 5001 / 2 - 14, sum);
    }

    static void metadata(Connection connection) throws Exception {
        execute(connection, "CREATE TABLE t (a INT, b VARCHAR(10), c INT NOT NULL, PRIMARY KEY (b, a), UNIQUE KEY u (c))");
        List<String> key = new ArrayList<>();
        try (ResultSet rows = connection.getMetaData().getPrimaryKeys(connection.getCatalog(), null, "t")) {
            while (rows.next()) key.add(rows.getShort("KEY_SEQ") + rows.getString("COLUMN_NAME"));
        }
        Collections.sort(key);
        check(key.equals(List.of("1b", "2a")), key);
        check(connection.getMetaData().supportsTransactions(), "transactions");
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Test> tests = new LinkedHashMap<>();
        tests.put("values come back as they went", JdbcClient::values);
        tests.put("batches", JdbcClient::batches);
        tests.put("transactions, savepoints, a refused statement", JdbcClient::transactions);
        tests.put("result sets that update and stream", JdbcClient::resultSets);
        tests.put("metadata", JdbcClient::metadata);
        int failed = 0;
        for (Map.Entry<String, Test> test : tests.entrySet()) {
            try (Connection connection = DriverManager.getConnection(arguments[0])) {
                execute(connection, "DROP TABLE IF EXISTS t");
                test.getValue().run(connection);
                System.out.println("jdbc: " + test.getKey() + ": ok");
            } catch (Throwable error) {
                failed++;
                System.out.println("jdbc: " + test.getKey() + ": FAILED");
                error.printStackTrace(System.out);
            }
        }
        System.out.println((tests.size() - failed) + " passed, " + failed + " failed");
        System.exit(failed == 0 ? 0 : 1);
    }
}
