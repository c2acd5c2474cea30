//! Statements that change definitions, of all kinds.

/// One statement, and what it needs.
#[derive(Debug)]
pub struct Case {
    /// Unique, for messages and to choose by.
    pub name: &'static str,
    /// What is there before. `{db}` stands for the database that is the default one; others have
    /// names that begin so.
    pub before: &'static [&'static str],
    /// The statement, or several: the last one is what it is about.
    pub statements: &'static [&'static str],
    /// Whether it belongs to the part that is run often.
    pub is_quick: bool,
    /// Why MariaDB itself makes it impossible that a power cut loses nothing of it.
    pub excuse: Option<&'static str>,
}

impl Case {
    const fn new(
        name: &'static str,
        before: &'static [&'static str],
        statements: &'static [&'static str],
    ) -> Case {
        Case { name, before, statements, is_quick: false, excuse: None }
    }

    const fn quick(self) -> Case {
        Case { is_quick: true, ..self }
    }

    const fn excused(self, why: &'static str) -> Case {
        Case { excuse: Some(why), ..self }
    }

    /// Whether a crash in the middle leaves all of it or nothing: it is one statement, which the
    /// server does not do table by table. (CREATE OR REPLACE is a DROP and a CREATE, as MariaDB
    /// documents.)
    pub fn is_atomic(&self) -> bool {
        let in_steps =
            ["drop-several", "truncate-partitioned", "drop-database", "create-or-replace"];
        self.statements.len() == 1 && !in_steps.contains(&self.name)
    }
}

const TABLE: &str = "CREATE TABLE t (id INT PRIMARY KEY, a INT NOT NULL DEFAULT 1, b VARCHAR(20), \
     e ENUM('x', 'y'), KEY k (a))";
const ROWS: &str = "INSERT INTO t SELECT seq, seq % 7, CONCAT('row ', seq), 'x' FROM seq_1_to_300";
const T: &[&str] = &[TABLE, ROWS];

const PLACES: &str = "CREATE TABLE g (id INT PRIMARY KEY, p POINT NOT NULL, q GEOMETRY NOT NULL, \
     SPATIAL INDEX q (q))";
const ROWS_OF_PLACES: &str =
    "INSERT INTO g SELECT seq, POINT(seq % 7, seq), POINT(seq, seq % 5) FROM seq_1_to_300";
const G: &[&str] = &[PLACES, ROWS_OF_PLACES];

const RANGES: &str = "CREATE TABLE r (id INT PRIMARY KEY, a INT, KEY k (a)) PARTITION BY RANGE (id) \
     (PARTITION p0 VALUES LESS THAN (100), PARTITION p1 VALUES LESS THAN (200), PARTITION p2 VALUES LESS THAN (300))";
const ROWS_IN_RANGES: &str = "INSERT INTO r SELECT seq, seq % 5 FROM seq_1_to_299";
const R: &[&str] = &[RANGES, ROWS_IN_RANGES];

const HASHED: &str =
    "CREATE TABLE h (id INT PRIMARY KEY, a INT, KEY k (a)) PARTITION BY HASH (id) PARTITIONS 4";
const ROWS_HASHED: &str = "INSERT INTO h SELECT seq, seq % 5 FROM seq_1_to_300";
const H: &[&str] = &[HASHED, ROWS_HASHED];

const PARENT: &str = "CREATE TABLE p (id INT PRIMARY KEY)";
const PARENTS: &str = "INSERT INTO p SELECT seq FROM seq_1_to_50";
const CHILD: &str = "CREATE TABLE c (id INT PRIMARY KEY, p INT, KEY k (p))";
const CHILDREN: &str = "INSERT INTO c SELECT seq, seq % 50 + 1 FROM seq_1_to_200";
const REFERENCING: &str =
    "CREATE TABLE c (id INT PRIMARY KEY, p INT, CONSTRAINT f FOREIGN KEY (p) REFERENCES p (id))";

/// All of them.
pub const CASES: &[Case] = &[
    // CREATE
    Case::new("create", &[], &["CREATE TABLE n (id INT PRIMARY KEY, v TEXT)"]).quick(),
    Case::new("create-if-not-exists", &[], &["CREATE TABLE IF NOT EXISTS n (id INT, KEY (id))"]),
    Case::new("create-or-replace", T, &["CREATE OR REPLACE TABLE t (other BIGINT PRIMARY KEY)"]),
    Case::new("create-like", T, &["CREATE TABLE n LIKE t"]),
    Case::new("create-select", T, &["CREATE TABLE n (PRIMARY KEY (id)) SELECT * FROM t"]),
    Case::new("create-ranges", &[], &[RANGES]).quick(),
    Case::new(
        "create-subpartitions",
        &[],
        &[
            "CREATE TABLE s (id INT, d INT) PARTITION BY RANGE (id) SUBPARTITION BY HASH (d) SUBPARTITIONS 2 \
           (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN MAXVALUE)",
        ],
    ),
    Case::new(
        "create-expressions",
        &[],
        &["CREATE TABLE `strange #name` (id INT PRIMARY KEY, `größe` INT CHECK (`größe` > 0), \
           v INT AS (`größe` + 1) VIRTUAL, s INT AS (id * 2) STORED, u TIMESTAMP DEFAULT CURRENT_TIMESTAMP)"],
    ),
    Case::new("create-sequence", &[], &["CREATE SEQUENCE q START WITH 5 INCREMENT BY 3"]),
    Case::new("create-child", &[PARENT, PARENTS], &[REFERENCING]),
    Case::new(
        "create-in-new-database",
        &[],
        &["CREATE DATABASE {db}_new", "CREATE TABLE {db}_new.n (id INT PRIMARY KEY)"],
    ),
    // RENAME
    Case::new("rename", T, &["RENAME TABLE t TO u"]).quick(),
    Case::new(
        "rename-swap",
        &[TABLE, ROWS, "CREATE TABLE u (other BIGINT)", "INSERT INTO u VALUES (7)"],
        &["RENAME TABLE t TO x, u TO t, x TO u"],
    )
    .quick(),
    Case::new(
        "rename-to-other-database",
        &[TABLE, ROWS, "CREATE DATABASE {db}_new"],
        &["RENAME TABLE t TO {db}_new.t"],
    ),
    Case::new("rename-partitioned", R, &["RENAME TABLE r TO u"]),
    Case::new("rename-parent", &[PARENT, PARENTS, REFERENCING, CHILDREN], &["RENAME TABLE p TO u"]),
    Case::new("alter-rename", T, &["ALTER TABLE t RENAME TO u"]),
    // TRUNCATE and DROP
    Case::new("truncate", T, &["TRUNCATE TABLE t"]),
    Case::new("truncate-partitioned", R, &["TRUNCATE TABLE r"]),
    Case::new("drop", T, &["DROP TABLE t"]).quick(),
    Case::new("drop-several", &[TABLE, ROWS, PARENT, PARENTS, RANGES], &["DROP TABLE t, p, r"]),
    Case::new("drop-partitioned", R, &["DROP TABLE r"]),
    Case::new("drop-sequence", &["CREATE SEQUENCE q"], &["DROP SEQUENCE q"]),
    Case::new(
        "drop-database",
        &["CREATE DATABASE {db}_old", "CREATE TABLE {db}_old.t (id INT PRIMARY KEY)"],
        &["DROP DATABASE {db}_old"],
    )
    .excused(
        "the database is there again, empty: the server syncs neither its directory nor db.opt",
    ),
    // ALTER: the definition alone
    Case::new("comment", T, &["ALTER TABLE t COMMENT = 'other'"]).quick(),
    Case::new("column-comment", T, &["ALTER TABLE t MODIFY b VARCHAR(20) COMMENT 'other'"]),
    Case::new("default", T, &["ALTER TABLE t ALTER a SET DEFAULT 9"]),
    Case::new("rename-column", T, &["ALTER TABLE t RENAME COLUMN b TO renamed"]),
    Case::new(
        "rename-column-of-child",
        &[PARENT, PARENTS, REFERENCING, CHILDREN],
        &["ALTER TABLE c RENAME COLUMN p TO parent"],
    ),
    Case::new("rename-index", T, &["ALTER TABLE t RENAME INDEX k TO renamed"]),
    Case::new("ignore-index", T, &["ALTER TABLE t ALTER INDEX k IGNORED"]),
    Case::new("extend-enum", T, &["ALTER TABLE t MODIFY e ENUM('x', 'y', 'z')"]),
    Case::new("extend-varchar", T, &["ALTER TABLE t MODIFY b VARCHAR(200)"]),
    Case::new("add-virtual-column", T, &["ALTER TABLE t ADD v INT AS (a + 1) VIRTUAL"]),
    Case::new("auto-increment", T, &["ALTER TABLE t AUTO_INCREMENT = 5000"]),
    // ALTER: rows of another version
    Case::new("add-column", T, &["ALTER TABLE t ADD n INT NOT NULL DEFAULT 42 AFTER id"]).quick(),
    Case::new("drop-column", T, &["ALTER TABLE t DROP b"]),
    Case::new("move-column", T, &["ALTER TABLE t MODIFY e ENUM('x', 'y') AFTER id"]),
    Case::new("nullable", T, &["ALTER TABLE t MODIFY a INT NULL"]),
    Case::new("add-column-and-rename", T, &["ALTER TABLE t ADD n INT DEFAULT 3, RENAME TO u"]),
    // ALTER: indexes
    Case::new("add-index", T, &["ALTER TABLE t ADD INDEX n (b)"]).quick(),
    Case::new("add-spatial", G, &["ALTER TABLE g ADD SPATIAL INDEX s (p)"]).quick(),
    Case::new("drop-spatial", G, &["ALTER TABLE g DROP INDEX q"]),
    Case::new("create-index", T, &["CREATE UNIQUE INDEX n ON t (a, id)"]),
    Case::new("drop-index", T, &["DROP INDEX k ON t"]),
    Case::new(
        "several-changes",
        T,
        &["ALTER TABLE t ADD UNIQUE n (b), DROP INDEX k, ADD x BIGINT DEFAULT 1, COMMENT = 'new'"],
    ),
    // ALTER: copies
    Case::new("modify-type", T, &["ALTER TABLE t MODIFY id BIGINT"]).quick(),
    Case::new("primary-key", T, &["ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, a)"]),
    Case::new("character-set", T, &["ALTER TABLE t CONVERT TO CHARACTER SET latin1"]),
    Case::new("force", T, &["ALTER TABLE t FORCE, ALGORITHM=COPY"]),
    Case::new("copy-and-rename", T, &["ALTER TABLE t MODIFY id BIGINT, RENAME TO u"]),
    Case::new("optimize", T, &["OPTIMIZE TABLE t"]),
    Case::new("to-other-engine", T, &["ALTER TABLE t ENGINE = Aria"]),
    Case::new(
        "from-other-engine",
        &[
            "CREATE TABLE o (id INT PRIMARY KEY, v TEXT) ENGINE = Aria",
            "INSERT INTO o SELECT seq, seq FROM seq_1_to_100",
        ],
        &["ALTER TABLE o ENGINE = {engine}"],
    ),
    // Foreign keys
    Case::new(
        "add-foreign-key",
        &[PARENT, PARENTS, CHILD, CHILDREN],
        &["ALTER TABLE c ADD CONSTRAINT f FOREIGN KEY (p) REFERENCES p (id)"],
    )
    .quick(),
    Case::new(
        "drop-foreign-key",
        &[PARENT, PARENTS, REFERENCING, CHILDREN],
        &["ALTER TABLE c DROP FOREIGN KEY f"],
    ),
    // Partitions
    Case::new(
        "add-range",
        R,
        &["ALTER TABLE r ADD PARTITION (PARTITION p3 VALUES LESS THAN (400))"],
    )
    .quick(),
    Case::new("drop-partition", R, &["ALTER TABLE r DROP PARTITION p1"]).quick(),
    Case::new(
        "reorganize",
        R,
        &["ALTER TABLE r REORGANIZE PARTITION p0, p1 INTO \
           (PARTITION a VALUES LESS THAN (50), PARTITION b VALUES LESS THAN (200))"],
    )
    .quick(),
    Case::new("rebuild-partition", R, &["ALTER TABLE r REBUILD PARTITION p1"]),
    Case::new("truncate-partition", R, &["ALTER TABLE r TRUNCATE PARTITION p1"]),
    Case::new("coalesce", H, &["ALTER TABLE h COALESCE PARTITION 2"]),
    Case::new("add-hash-partitions", H, &["ALTER TABLE h ADD PARTITION PARTITIONS 2"]),
    Case::new(
        "exchange",
        &[
            RANGES,
            ROWS_IN_RANGES,
            "CREATE TABLE x (id INT PRIMARY KEY, a INT, KEY k (a))",
            "INSERT INTO x VALUES (150, 1), (151, 2)",
        ],
        &["ALTER TABLE r EXCHANGE PARTITION p1 WITH TABLE x"],
    )
    .quick(),
    Case::new("convert-to-table", R, &["ALTER TABLE r CONVERT PARTITION p1 TO TABLE x"]),
    Case::new(
        "convert-to-partition",
        &[
            RANGES,
            ROWS_IN_RANGES,
            "CREATE TABLE x (id INT PRIMARY KEY, a INT, KEY k (a))",
            "INSERT INTO x VALUES (350, 1), (351, 2)",
        ],
        &["ALTER TABLE r CONVERT TABLE x TO PARTITION p3 VALUES LESS THAN (400)"],
    ),
    Case::new("partition-by", T, &["ALTER TABLE t PARTITION BY HASH (id) PARTITIONS 3"]),
    Case::new("remove-partitioning", R, &["ALTER TABLE r REMOVE PARTITIONING"]),
    Case::new("partitioned-comment", R, &["ALTER TABLE r COMMENT = 'other'"]),
    Case::new("partitioned-add-index", R, &["ALTER TABLE r ADD INDEX n (a, id)"]),
    Case::new("partitioned-add-column", R, &["ALTER TABLE r ADD n INT NOT NULL DEFAULT 7"]),
    Case::new("partitioned-copy", R, &["ALTER TABLE r MODIFY a BIGINT"]),
    // Sequences
    Case::new(
        "alter-sequence",
        &["CREATE SEQUENCE q"],
        &["ALTER SEQUENCE q RESTART 50 MAXVALUE 900"],
    ),
    Case::new("rename-sequence", &["CREATE SEQUENCE q"], &["RENAME TABLE q TO w"]),
];
