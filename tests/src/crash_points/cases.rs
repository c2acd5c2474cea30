//! The statements that are cut short. `{E}` is the engine under test, `{O}` the other one.
//!
//! Every case begins in two empty databases, `cp` (the default) and `cp2`, and has its own tables
//! in them.

/// What must be there after the crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// A change of definitions: the state before, or the state after; acknowledged, it is durable
    /// at any setting.
    Definition,
    /// A commit: likewise before or after, but acknowledged it is as durable as
    /// `flush_log_at_trx_commit` says.
    Commit,
}

/// A statement, or a few, and what they begin with.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// For the command line and the report.
    pub name: &'static str,
    /// What is there before, one statement an element.
    pub setup: &'static [&'static str],
    /// Run before the thread is traced, in the same session, after all of `setup` is durable.
    /// `copy A B` copies a file in the directory of `cp`.
    pub prelude: &'static [&'static str],
    /// What the crash interrupts. Several statements run one after the other.
    pub statements: &'static [&'static str],
    /// Statements whose states, one after the other from the state before, are allowed as well: the
    /// server promises each of them alone.
    pub steps: &'static [&'static str],
    /// See [`Promise`].
    pub promise: Promise,
}

const fn definition(
    name: &'static str,
    setup: &'static [&'static str],
    statements: &'static [&'static str],
) -> Case {
    Case { name, setup, prelude: &[], statements, steps: &[], promise: Promise::Definition }
}

const fn commit(
    name: &'static str,
    setup: &'static [&'static str],
    statements: &'static [&'static str],
) -> Case {
    Case { name, setup, prelude: &[], statements, steps: &[], promise: Promise::Commit }
}

const P: &str = "CREATE TABLE p (id INT PRIMARY KEY, s VARCHAR(20)) ENGINE={E}";
const P_ROWS: &str = "INSERT INTO p SELECT seq, CONCAT('p', seq) FROM seq_1_to_5";
/// A child, whose copy is filled by inserts.
const C: &str = "CREATE TABLE c (a INT PRIMARY KEY, p INT, KEY (p), CONSTRAINT cp FOREIGN KEY \
     (p) REFERENCES p (id)) ENGINE={E}";
const C_ROWS: &str = "INSERT INTO c SELECT seq, 1 + seq % 5 FROM seq_1_to_300";
const EXPORTED_AS_U: &[&str] = &["FLUSH TABLES t FOR EXPORT", "copy t.tpx u.tpx", "UNLOCK TABLES"];
/// With a virtual column.
const V: &str = "CREATE TABLE v (a INT PRIMARY KEY, b INT, s VARCHAR(20) AS (CONCAT('v', a + b)) \
     VIRTUAL) ENGINE={E}";
const V_ROWS: &str = "INSERT INTO v (a, b) SELECT seq, seq FROM seq_1_to_1500";
/// With rows of the past.
const H: &str = "CREATE TABLE h (a INT PRIMARY KEY, n INT) WITH SYSTEM VERSIONING ENGINE={E}";
const H_ROWS: &str = "INSERT INTO h SELECT seq, seq FROM seq_1_to_500";
const H_PAST: &str = "UPDATE h SET n = n + 1 WHERE a % 2";
/// A table alone, whose copy is loaded in bulk if it has 1000 rows.
const G: &str = "CREATE TABLE g (a INT PRIMARY KEY, p POINT NOT NULL) ENGINE={E}";
const G_ROWS: &str = "INSERT INTO g SELECT seq, POINT(seq % 7, seq) FROM seq_1_to_1500";

const T: &str = "CREATE TABLE t (a INT PRIMARY KEY, b INT, s VARCHAR(30), KEY b (b)) ENGINE={E}";
const T_ROWS: &str = "INSERT INTO t SELECT seq, seq % 7, CONCAT('text ', seq) FROM seq_1_to_1500";
const T_FEW: &str = "INSERT INTO t SELECT seq, seq % 7, CONCAT('text ', seq) FROM seq_1_to_50";
const U: &str = "CREATE TABLE u (a INT PRIMARY KEY, b INT, s VARCHAR(30), KEY b (b)) ENGINE={E}";
const U_ROWS: &str = "INSERT INTO u SELECT seq, seq % 7, CONCAT('u ', seq) FROM seq_1_to_30";
const OTHER: &str =
    "CREATE TABLE o (a INT PRIMARY KEY, b INT, s VARCHAR(30), KEY b (b)) ENGINE={O}";
const OTHER_ROWS: &str =
    "INSERT INTO o SELECT seq, seq % 7, CONCAT('other ', seq) FROM seq_1_to_300";
const RANGE: &str = "CREATE TABLE r (a INT PRIMARY KEY, b INT, KEY (b)) ENGINE={E} PARTITION BY \
     RANGE (a) \
     (PARTITION r0 VALUES LESS THAN (100), PARTITION r1 VALUES LESS THAN (200), PARTITION r2 \
          VALUES LESS THAN (300))";
const RANGE_ROWS: &str = "INSERT INTO r SELECT seq, seq % 7 FROM seq_1_to_299";
const HASH: &str = "CREATE TABLE h (a INT PRIMARY KEY, b INT, KEY (b)) ENGINE={E} PARTITION BY \
     HASH (a) PARTITIONS 3";
const HASH_ROWS: &str = "INSERT INTO h SELECT seq, seq % 7 FROM seq_1_to_300";
const E_TABLE: &str = "CREATE TABLE e (a INT PRIMARY KEY, b INT, KEY (b)) ENGINE={E}";
const E_ROWS: &str = "INSERT INTO e SELECT seq, 8 FROM seq_100_to_150";
const TRIGGER: &str = "CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW SET NEW.b = NEW.b + 1";
const SEQUENCE: &str = "CREATE SEQUENCE s START WITH 5 ENGINE={E}";

pub const CASES: &[Case] = &[
    definition("create", &[], &[T]),
    definition(
        "create-if-not-exists",
        &[P],
        &["CREATE TABLE IF NOT EXISTS t (a INT PRIMARY KEY) ENGINE={E}"],
    ),
    definition("create-like", &[T, T_FEW], &["CREATE TABLE x LIKE t"]),
    definition(
        "create-select",
        &[T, T_ROWS],
        &["CREATE TABLE x (PRIMARY KEY (a), KEY (b)) ENGINE={E} SELECT * FROM t"],
    ),
    definition(
        "create-or-replace",
        &[T, T_FEW],
        &["CREATE OR REPLACE TABLE t (z INT PRIMARY KEY) ENGINE={E}"],
    ),
    definition(
        "create-or-replace-select",
        &[T, T_FEW, U, U_ROWS],
        &["CREATE OR REPLACE TABLE t ENGINE={E} SELECT * FROM u"],
    ),
    definition("create-foreign-key", &[P, P_ROWS], &[C]),
    definition("create-partitioned", &[], &[RANGE]),
    definition(
        "create-temporary",
        &[T, T_FEW],
        &[
            "CREATE TEMPORARY TABLE x (a INT PRIMARY KEY) ENGINE={E}",
            "INSERT INTO x VALUES (1)",
            "ALTER TABLE x ADD b INT",
            "DROP TEMPORARY TABLE x",
        ],
    ),
    definition(
        "create-auto-increment",
        &[],
        &["CREATE TABLE x (a INT AUTO_INCREMENT PRIMARY KEY) ENGINE={E} AUTO_INCREMENT=500"],
    ),
    definition("drop", &[T, T_ROWS], &["DROP TABLE t"]),
    Case {
        steps: &["DROP TABLE t", "DROP TABLE u", "DROP TABLE r"],
        ..definition(
            "drop-several",
            &[T, T_FEW, U, U_ROWS, RANGE, RANGE_ROWS],
            &["DROP TABLE t, u, r"],
        )
    },
    definition("drop-partitioned", &[HASH, HASH_ROWS], &["DROP TABLE h"]),
    definition("rename", &[T, T_FEW], &["RENAME TABLE t TO x"]),
    definition("rename-swap", &[T, T_FEW, U, U_ROWS], &["RENAME TABLE t TO x, u TO t, x TO u"]),
    definition("rename-across-databases", &[T, T_FEW], &["RENAME TABLE cp.t TO cp2.t"]),
    definition("rename-parent", &[P, P_ROWS, C, C_ROWS], &["RENAME TABLE p TO q"]),
    definition("rename-partitioned", &[RANGE, RANGE_ROWS], &["RENAME TABLE r TO x"]),
    definition("truncate", &[T, T_ROWS], &["TRUNCATE TABLE t"]),
    definition("discard-tablespace", &[T, T_ROWS], &["ALTER TABLE t DISCARD TABLESPACE"]),
    Case {
        name: "import-tablespace",
        setup: &[
            T,
            T_ROWS,
            "ALTER TABLE t ADD c INT DEFAULT 7, ALGORITHM=INSTANT",
            "CREATE TABLE u LIKE t",
            "ALTER TABLE u DISCARD TABLESPACE",
        ],
        prelude: EXPORTED_AS_U,
        statements: &["ALTER TABLE u IMPORT TABLESPACE"],
        steps: &[],
        promise: Promise::Definition,
    },
    definition(
        "alter-instant-add",
        &[T, T_FEW],
        &["ALTER TABLE t ADD c INT DEFAULT 7, ALGORITHM=INSTANT"],
    ),
    definition("alter-instant-drop", &[T, T_FEW], &["ALTER TABLE t DROP s, ALGORITHM=INSTANT"]),
    definition(
        "alter-instant-modify",
        &[T, T_FEW],
        &["ALTER TABLE t MODIFY s VARCHAR(60), ALGORITHM=INSTANT"],
    ),
    definition(
        "alter-instant-default",
        &[T, T_FEW],
        &["ALTER TABLE t ALTER s SET DEFAULT 'x', ALGORITHM=INSTANT"],
    ),
    definition(
        "alter-add-index",
        &[T, T_ROWS],
        &["ALTER TABLE t ADD KEY s (s), ALGORITHM=INPLACE"],
    ),
    definition(
        "alter-add-spatial",
        &[G, G_ROWS],
        &["ALTER TABLE g ADD SPATIAL KEY p (p), ALGORITHM=INPLACE"],
    ),
    definition(
        "alter-add-index-virtual",
        &[V, V_ROWS],
        &["ALTER TABLE v ADD UNIQUE KEY s (s), ALGORITHM=NOCOPY"],
    ),
    definition(
        "alter-rebuild-versioned",
        &[H, H_ROWS, H_PAST],
        &["ALTER TABLE h FORCE, ADD KEY n (n), ALGORITHM=INPLACE"],
    ),
    definition("alter-drop-index", &[T, T_ROWS], &["ALTER TABLE t DROP KEY b, ALGORITHM=INPLACE"]),
    definition(
        "alter-swap-index",
        &[T, T_ROWS],
        &["ALTER TABLE t DROP KEY b, ADD UNIQUE KEY s (s)"],
    ),
    definition("alter-rename-column", &[T, T_FEW], &["ALTER TABLE t RENAME COLUMN b TO bb"]),
    definition("alter-rename-index", &[T, T_FEW], &["ALTER TABLE t RENAME KEY b TO bb"]),
    definition("alter-rename-table", &[T, T_FEW], &["ALTER TABLE t RENAME TO x, ADD c INT"]),
    definition(
        "alter-copy-modify",
        &[P, P_ROWS, C, C_ROWS],
        &["ALTER TABLE c MODIFY a BIGINT, ALGORITHM=COPY"],
    ),
    definition(
        "alter-copy-loaded",
        &[T, T_ROWS],
        &["ALTER TABLE t MODIFY a BIGINT, ALGORITHM=COPY"],
    ),
    definition(
        "alter-copy-rename",
        &[P, P_ROWS, C, C_ROWS],
        &["ALTER TABLE c MODIFY a BIGINT, RENAME TO x, ALGORITHM=COPY"],
    ),
    definition(
        "alter-copy-parent",
        &[P, P_ROWS, C, C_ROWS],
        &["ALTER TABLE p ADD x INT, ALGORITHM=COPY"],
    ),
    definition(
        "alter-copy-order",
        &[T, T_ROWS],
        &["ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (s), ALGORITHM=COPY"],
    ),
    definition("alter-force", &[T, T_FEW], &["ALTER TABLE t FORCE, ALGORITHM=COPY"]),
    definition(
        "alter-rebuild-force",
        &[T, T_ROWS],
        &["ALTER TABLE t FORCE, ALGORITHM=INPLACE, LOCK=NONE"],
    ),
    definition(
        "alter-rebuild-primary-key",
        &[T, T_ROWS],
        &["ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (s), ALGORITHM=INPLACE, LOCK=NONE"],
    ),
    definition(
        "alter-rebuild-modify",
        &[T, T_ROWS],
        &["ALTER TABLE t MODIFY a BIGINT, MODIFY b INT NOT NULL, ALGORITHM=INPLACE, LOCK=NONE"],
    ),
    definition(
        "alter-rebuild-rename",
        &[T, T_ROWS],
        &["ALTER TABLE t MODIFY a BIGINT, RENAME TO x, ALGORITHM=INPLACE, LOCK=NONE"],
    ),
    definition(
        "alter-rebuild-partitions",
        &[HASH, HASH_ROWS],
        &["ALTER TABLE h FORCE, ALGORITHM=INPLACE, LOCK=NONE"],
    ),
    definition("alter-optimize", &[P, P_ROWS, C, C_ROWS], &["OPTIMIZE TABLE c"]),
    definition("alter-engine-from-other", &[OTHER, OTHER_ROWS], &["ALTER TABLE o ENGINE={E}"]),
    definition("alter-engine-to-other", &[T, T_FEW], &["ALTER TABLE t ENGINE={O}"]),
    definition(
        "alter-add-foreign-key",
        &[P, P_ROWS, T, T_FEW, "UPDATE t SET b = 1"],
        &["ALTER TABLE t ADD CONSTRAINT f FOREIGN KEY (b) REFERENCES p (id)"],
    ),
    definition(
        "alter-drop-foreign-key",
        &[P, P_ROWS, C, C_ROWS],
        &["ALTER TABLE c DROP FOREIGN KEY cp"],
    ),
    definition("alter-drop-primary-key", &[T, T_FEW], &["ALTER TABLE t DROP PRIMARY KEY"]),
    definition("alter-comment", &[T, T_FEW], &["ALTER TABLE t COMMENT 'changed'"]),
    // The row shows the counter, and is a commit.
    commit(
        "alter-auto-increment",
        &[
            "CREATE TABLE t (a INT AUTO_INCREMENT PRIMARY KEY) ENGINE={E}",
            "INSERT INTO t VALUES (1)",
        ],
        &["ALTER TABLE t AUTO_INCREMENT = 1000", "INSERT INTO t VALUES ()"],
    ),
    definition("alter-convert", &[T, T_FEW], &["ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4"]),
    definition(
        "partition-add-range",
        &[RANGE, RANGE_ROWS],
        &["ALTER TABLE r ADD PARTITION (PARTITION r3 VALUES LESS THAN (400))"],
    ),
    definition(
        "partition-add-hash",
        &[HASH, HASH_ROWS],
        &["ALTER TABLE h ADD PARTITION PARTITIONS 2"],
    ),
    definition("partition-drop", &[RANGE, RANGE_ROWS], &["ALTER TABLE r DROP PARTITION r1"]),
    definition(
        "partition-truncate",
        &[RANGE, RANGE_ROWS],
        &["ALTER TABLE r TRUNCATE PARTITION r1"],
    ),
    definition(
        "partition-reorganize",
        &[RANGE, RANGE_ROWS],
        &["ALTER TABLE r REORGANIZE PARTITION r1, r2 INTO (PARTITION x VALUES LESS THAN (150), \
                 PARTITION y VALUES LESS THAN (300))"],
    ),
    definition("partition-coalesce", &[HASH, HASH_ROWS], &["ALTER TABLE h COALESCE PARTITION 1"]),
    definition("partition-remove", &[HASH, HASH_ROWS], &["ALTER TABLE h REMOVE PARTITIONING"]),
    definition("partition-by", &[T, T_FEW], &["ALTER TABLE t PARTITION BY HASH (a) PARTITIONS 2"]),
    definition(
        "partition-otherwise",
        &[HASH, HASH_ROWS],
        &["ALTER TABLE h PARTITION BY KEY (a) PARTITIONS 2"],
    ),
    definition(
        "partition-exchange",
        &[RANGE, RANGE_ROWS, E_TABLE, E_ROWS],
        &["ALTER TABLE r EXCHANGE PARTITION r1 WITH TABLE e"],
    ),
    definition(
        "partition-to-table",
        &[RANGE, RANGE_ROWS],
        &["ALTER TABLE r CONVERT PARTITION r1 TO TABLE x"],
    ),
    definition(
        "table-to-partition",
        &[RANGE, RANGE_ROWS, E_TABLE, "INSERT INTO e SELECT seq, 8 FROM seq_300_to_350"],
        &["ALTER TABLE r CONVERT TABLE e TO PARTITION r3 VALUES LESS THAN (400)"],
    ),
    definition("create-database", &[], &["CREATE DATABASE cp3"]),
    Case {
        steps: &["DROP TABLE cp2.t", "DROP TABLE cp2.u"],
        ..definition(
            "drop-database",
            &["USE cp2", T, T_FEW, U, U_ROWS, "USE cp"],
            &["DROP DATABASE cp2"],
        )
    },
    Case {
        steps: &["CREATE DATABASE cp3 CHARACTER SET latin2"],
        ..definition(
            "create-in-new-database",
            &[],
            &[
                "CREATE DATABASE cp3 CHARACTER SET latin2",
                "CREATE TABLE cp3.t (a INT PRIMARY KEY, s VARCHAR(9)) ENGINE={E}",
            ],
        )
    },
    definition("create-trigger", &[T, T_FEW], &[TRIGGER]),
    definition("create-trigger-under-lock", &[T, T_FEW], &["LOCK TABLES t WRITE", TRIGGER]),
    definition(
        "create-second-trigger",
        &[T, T_FEW, TRIGGER],
        &["CREATE TRIGGER g2 AFTER DELETE ON t FOR EACH ROW SET @deleted = OLD.a"],
    ),
    definition("drop-trigger", &[T, T_FEW, TRIGGER], &["DROP TRIGGER g"]),
    definition("drop-with-trigger", &[T, T_FEW, TRIGGER], &["DROP TABLE t"]),
    definition("rename-with-trigger", &[T, T_FEW, TRIGGER], &["RENAME TABLE t TO x"]),
    definition(
        "alter-rename-with-trigger",
        &[T, T_FEW, TRIGGER],
        &["ALTER TABLE t RENAME TO x, ADD c INT"],
    ),
    definition(
        "alter-copy-rename-with-trigger",
        &[T, T_FEW, TRIGGER],
        &["ALTER TABLE t MODIFY a BIGINT, RENAME TO x, ALGORITHM=COPY"],
    ),
    definition("create-sequence", &[], &[SEQUENCE]),
    definition(
        "alter-sequence",
        &[SEQUENCE, "DO NEXTVAL(s)"],
        &["ALTER SEQUENCE s INCREMENT BY 3 RESTART 100"],
    ),
    definition("drop-sequence", &[SEQUENCE], &["DROP SEQUENCE s"]),
    commit("commit-insert", &[T, T_FEW], &["INSERT INTO t VALUES (1000, 1, 'new')"]),
    commit(
        "commit-transaction",
        &[T, T_FEW, U, U_ROWS],
        &[
            "BEGIN",
            "INSERT INTO t SELECT 1000 + seq, seq, 'new' FROM seq_1_to_20",
            "UPDATE u SET b = 99 WHERE a < 10",
            "DELETE FROM t WHERE a < 5",
            "COMMIT",
        ],
    ),
    commit(
        "commit-foreign-key",
        &[
            P,
            P_ROWS,
            "CREATE TABLE c (a INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON \
                 DELETE CASCADE) ENGINE={E}",
            C_ROWS,
        ],
        &["DELETE FROM p WHERE id = 2"],
    ),
    commit(
        "commit-two-engines",
        &[T, T_FEW, OTHER, OTHER_ROWS],
        &[
            "BEGIN",
            "INSERT INTO t VALUES (1000, 1, 'new')",
            "INSERT INTO o VALUES (1000, 1, 'new')",
            "COMMIT",
        ],
    ),
    Case {
        prelude: &["XA START 'x'", "INSERT INTO t VALUES (1000, 1, 'new')", "XA END 'x'"],
        ..definition("xa-prepare", &[T, T_FEW], &["XA PREPARE 'x'"])
    },
    Case {
        prelude: &[
            "XA START 'x'",
            "INSERT INTO t VALUES (1000, 1, 'new')",
            "XA END 'x'",
            "XA PREPARE 'x'",
        ],
        ..definition("xa-commit", &[T, T_FEW], &["XA COMMIT 'x'"])
    },
    Case {
        prelude: &[
            "XA START 'x'",
            "INSERT INTO t VALUES (1000, 1, 'new')",
            "XA END 'x'",
            "XA PREPARE 'x'",
        ],
        ..definition("xa-rollback", &[T, T_FEW], &["XA ROLLBACK 'x'"])
    },
    Case {
        steps: &["DO NEXTVAL(s)"],
        ..commit(
            "commit-sequence",
            &[SEQUENCE, T],
            &["INSERT INTO t VALUES (NEXTVAL(s), 1, 'numbered')"],
        )
    },
];
