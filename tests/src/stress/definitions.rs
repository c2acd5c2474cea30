//! The table, and the ALTERs that run beside its writers, in and out of place.

use std::thread::sleep;
use std::time::Duration;

use mysql::prelude::Queryable;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::session::{Answer, Lost, Session};
use super::stage::{Count, DATABASE, Stage};
use crate::server::Engine;

/// More columns or indexes than these that an ALTER added are dropped again.
const ADDED_MAX: usize = 3;

/// What concurrent statements, kills and earlier ALTERs may refuse an ALTER with: a lock wait, a
/// deadlock, an interruption; an index or a column that is there already, or isn't; something that
/// can't be done this way.
const EXPECTED_ERRORS: [u16; 10] = [1205, 1213, 1317, 1061, 1091, 1176, 1845, 1846, 1054, 1020];

/// The statement that makes the table; the seed decides what ALTER TABLE can't change.
pub fn create_table(rng: &mut StdRng) -> String {
    let kind = ["VIRTUAL", "STORED"].choose(rng).expect("there are some");
    let versioned = if rng.random_bool(0.5) { " WITH SYSTEM VERSIONING" } else { "" };
    format!(
        "CREATE TABLE m (id BIGINT NOT NULL PRIMARY KEY, owner INT NOT NULL, n INT, \
           v VARCHAR(300) COLLATE utf8mb4_unicode_ci, u INT, b LONGBLOB, \
           t TEXT CHARACTER SET latin1, g INT AS (n % 7) VIRTUAL, \
           s VARCHAR(40) AS (CONCAT(LEFT(v, 9), '-', n)) {kind}, p POINT NOT NULL, \
           UNIQUE KEY uu (u), KEY kn (n), KEY kv (v(20), n), KEY kd (n DESC, v(10)), \
           KEY kg (g, u), KEY ks (s), KEY kb (b(300)), KEY ko (owner, u), \
           FULLTEXT KEY ft (t), SPATIAL KEY sp (p)) CHARSET utf8mb4{versioned}"
    )
}

/// Creates the database and the table.
///
/// # Errors
/// If the server refuses.
pub fn create(conn: &mut mysql::Conn, rng: &mut StdRng) -> mysql::Result<()> {
    conn.query_drop(format!("CREATE DATABASE {DATABASE}"))?;
    conn.query_drop(format!("USE {DATABASE}"))?;
    conn.query_drop(create_table(rng))
}

/// The session that changes the table.
pub struct Definer<'a> {
    stage: &'a Stage,
    engine: Engine,
    session: Session<'a>,
    rng: StdRng,
    /// ALTERs so far; names what they add.
    number: u32,
}

impl<'a> Definer<'a> {
    pub fn new(number: usize, seed: u64, engine: Engine, stage: &'a Stage) -> Definer<'a> {
        let (session, rng) = (Session::new(number, stage), StdRng::seed_from_u64(seed));
        Definer { stage, engine, session, rng, number: 0 }
    }

    /// Changes the table until the stage ends.
    pub fn run(mut self) {
        while !self.stage.has_ended() {
            {
                let _turn = self.stage.turn();
                // A connection that is lost is replaced at the next turn.
                let _ = self.step();
            }
            sleep(Duration::from_millis(self.rng.random_range(0..200)));
        }
    }

    fn step(&mut self) -> Result<(), Lost> {
        if self.session.ensure()? {
            self.session.insist("SET system_versioning_alter_history = KEEP")?;
        }
        self.number += 1;
        let change = match self.drop_some()? {
            Some(drop) => drop,
            None => self.change(),
        };
        match self.session.run(&format!("ALTER TABLE m {change}"))? {
            Answer::Done => self.stage.count(Count::Alters),
            Answer::Unsure => {}
            Answer::Failed(code) if EXPECTED_ERRORS.contains(&code) => {}
            Answer::Failed(code) => {
                self.stage.report(format!("ALTER TABLE m {change}: error {code}"));
            }
        }
        Ok(())
    }

    /// The change that drops what an earlier one added, if there is enough of it.
    fn drop_some(&mut self) -> Result<Option<String>, Lost> {
        let sources = [
            ("COLUMN", "SELECT COLUMN_NAME FROM information_schema.COLUMNS", "COLUMN_NAME"),
            ("KEY", "SELECT DISTINCT INDEX_NAME FROM information_schema.STATISTICS", "INDEX_NAME"),
        ];
        for (kind, select, name) in sources {
            let sql = format!(
                "{select} WHERE TABLE_SCHEMA = '{DATABASE}' AND TABLE_NAME = 'm' \
                 AND {name} LIKE 'added%' ORDER BY 1"
            );
            let Ok(added) = self.session.ask(|conn| conn.query::<String, _>(&sql))? else {
                continue;
            };
            if added.len() > ADDED_MAX {
                let drop = added.choose(&mut self.rng).expect("there are some");
                return Ok(Some(format!("DROP {kind} {drop}")));
            }
        }
        Ok(None)
    }

    fn change(&mut self) -> String {
        let number = self.number;
        let choices = [
            "ADD KEY added# (n, v(5))",
            "ADD KEY added# (t(30), g)",
            "ADD KEY added# (u DESC, owner)",
            "ADD KEY added# (s DESC)",
            "ADD COLUMN added# INT DEFAULT 4711",
            "ADD COLUMN added# VARCHAR(20) DEFAULT 'q' FIRST",
            "ADD COLUMN added# INT AS (n + 1) VIRTUAL, ADD KEY added# (added#)",
            "DROP KEY kn, ADD KEY kn (n, u)",
            "DROP KEY kb, ADD KEY kb (b(200), n)",
            "DROP KEY ft, ADD FULLTEXT KEY ft (t)",
            "DROP KEY ft",
            "ADD FULLTEXT KEY ft (t)",
            "DROP KEY sp, ADD SPATIAL KEY sp (p)",
            "DROP KEY sp",
            "ADD SPATIAL KEY sp (p)",
            "RENAME INDEX kg TO kg2",
            "RENAME INDEX kg2 TO kg",
            "MODIFY n BIGINT",
            "MODIFY n INT",
            "MODIFY v VARCHAR(300) COLLATE utf8mb4_bin",
            "MODIFY v VARCHAR(400) COLLATE utf8mb4_general_ci",
            "MODIFY v VARCHAR(300) COLLATE utf8mb4_unicode_ci",
            "MODIFY u INT AFTER id",
            "MODIFY b LONGBLOB FIRST",
            "MODIFY p POINT NOT NULL AFTER owner",
            "MODIFY t TEXT CHARACTER SET utf8mb4",
            "MODIFY t TEXT CHARACTER SET latin1",
            "MODIFY owner BIGINT NOT NULL",
            "MODIFY owner INT NOT NULL",
            "DROP PRIMARY KEY, ADD PRIMARY KEY (id, owner)",
            "DROP PRIMARY KEY, ADD PRIMARY KEY (id)",
            "FORCE",
            "ALGORITHM=COPY, FORCE",
            "ENGINE=@",
            "COMPRESSION=LZ4",
            "COMPRESSION=OFF",
        ];
        // The last two are Tidepool's.
        let count = choices.len() - if self.engine == Engine::Tidepool { 0 } else { 2 };
        let choice = choices[self.rng.random_range(0..count)];
        choice.replace('#', &number.to_string()).replace('@', self.engine.name())
    }
}
