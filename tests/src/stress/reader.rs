//! A reader: in one snapshot, every way to the rows gives the same rows, whatever others commit,
//! purge and alter.

use std::thread::sleep;
use std::time::Duration;

use mysql::prelude::Queryable;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::model::{ROW_COLUMNS, Row, Rows, WORDS, difference};
use super::session::{Answer, Lost, Session};
use super::stage::{Count, Stage};
use crate::server::Engine;

/// What may end a read: an interruption, a table changed since the snapshot, an index that an ALTER
/// has dropped, a wait for an ALTER.
const EXPECTED_ERRORS: [u16; 5] = [1317, 1412, 1176, 1191, 1205];

/// Ways to all rows.
const WAYS: [&str; 9] = [
    "USE INDEX ()",
    "FORCE INDEX (PRIMARY) WHERE id > 0",
    "FORCE INDEX (uu) WHERE u IS NULL OR u >= 0",
    "FORCE INDEX (kn) WHERE n IS NULL OR n > -1000000",
    "FORCE INDEX (kd) WHERE n IS NULL OR n > -1000000",
    "FORCE INDEX (kv) WHERE v IS NULL OR v >= ''",
    "FORCE INDEX (kb) WHERE b IS NULL OR b >= ''",
    "FORCE INDEX (ks) WHERE s IS NULL OR s >= ''",
    "FORCE INDEX (ko) WHERE owner > 0",
];

/// A reader. See the [module](self).
pub struct Reader<'a> {
    stage: &'a Stage,
    engine: Engine,
    session: Session<'a>,
    rng: StdRng,
}

impl<'a> Reader<'a> {
    pub fn new(number: usize, seed: u64, engine: Engine, stage: &'a Stage) -> Reader<'a> {
        let (session, rng) = (Session::new(number, stage), StdRng::seed_from_u64(seed));
        Reader { stage, engine, session, rng }
    }

    /// Reads until the stage ends.
    pub fn run(mut self) {
        while !self.stage.has_ended() {
            {
                let _turn = self.stage.turn();
                // A connection that is lost is replaced at the next turn.
                let _ = self.step();
            }
            sleep(Duration::from_millis(self.rng.random_range(0..50)));
        }
    }

    fn step(&mut self) -> Result<(), Lost> {
        self.session.ensure()?;
        let begin = "START TRANSACTION WITH CONSISTENT SNAPSHOT";
        if self.session.run(begin)? == Answer::Done {
            self.read_again_and_again()?;
        }
        self.session.insist("ROLLBACK")
    }

    fn read_again_and_again(&mut self) -> Result<(), Lost> {
        let Some(first) = self.read(WAYS[0])? else { return Ok(()) };
        for _ in 0..self.rng.random_range(1..6) {
            sleep(Duration::from_millis(self.rng.random_range(0..100)));
            // InnoDB's are no part of a snapshot.
            let has_other_kinds = self.engine == Engine::Tidepool;
            let (way, expected) = match self.rng.random_range(0..12) {
                0 if has_other_kinds => {
                    let window = "POLYGON((-21 -21, 21 -21, 21 21, -21 21, -21 -21))";
                    let within = format!("MBRWithin(p, ST_GeomFromText('{window}'))");
                    (format!("FORCE INDEX (sp) WHERE {within}"), first.clone())
                }
                1 | 2 if has_other_kinds => {
                    let word = WORDS.choose(&mut self.rng).expect("there are some");
                    let mut with_word = first.clone();
                    with_word.retain(|_, row| row.t.contains(word));
                    (format!("WHERE MATCH(t) AGAINST('{word}' IN BOOLEAN MODE)"), with_word)
                }
                _ => {
                    let way = WAYS.choose(&mut self.rng).expect("there are some");
                    ((*way).to_owned(), first.clone())
                }
            };
            let Some(found) = self.read(&way)? else { return Ok(()) };
            if found == expected {
                self.stage.count(Count::Rereads);
            } else {
                let differences = difference(&found, &expected);
                self.stage.report(format!("in a snapshot, {way}: {differences}"));
            }
        }
        Ok(())
    }

    /// The rows, or `None` if they can't be read.
    fn read(&mut self, way: &str) -> Result<Option<Rows>, Lost> {
        let sql = format!("SELECT {ROW_COLUMNS} FROM m {way}");
        match self.session.ask(|conn| conn.query_map(&sql, Row::from_columns))? {
            Ok(rows) => {
                let count = rows.len();
                let rows: Rows = rows.into_iter().collect();
                if rows.len() != count {
                    self.stage.report(format!("in a snapshot, {way}: a row comes twice"));
                }
                Ok(Some(rows))
            }
            Err(code) => {
                if !EXPECTED_ERRORS.contains(&code) {
                    self.stage.report(format!("in a snapshot, {way}: error {code}"));
                }
                Ok(None)
            }
        }
    }
}
