//! A table that two sessions change in transactions, beside a model of what each of them sees: for
//! indexes whose searches follow snapshots.
//!
//! No id is changed by both sessions, so that none waits for the other. A session reads
//! by a snapshot, sets savepoints and returns to them, commits and rolls back; now and then the
//! server is killed. After any of that a search must give what the model has.

use std::collections::BTreeMap;

use mysql::Conn;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::server::Server;
use crate::sql::{check, run};

/// Rows by their ids.
pub type Rows<R> = BTreeMap<u32, R>;

/// What is modelled: a table `t` with a primary key `id`.
pub trait Modelled {
    /// What the model has of a row.
    type Row: Clone;

    /// The statement that makes the table.
    const TABLE: &str;
    /// Steps of a history.
    const STEPS: u32;
    /// A step is a change with this number of chances, against six for all else.
    const CHANGES: u32;
    /// How often a kill that came up happens.
    const KILLS: f64;

    /// Changes one row, whose id is `1 + 2 * n + session`, and the rows that the session sees.
    fn change(conn: &mut Conn, dice: &mut StdRng, session: u32, sees: &mut Rows<Self::Row>);

    /// Searches, and compares with the rows that the session sees.
    ///
    /// # Panics
    /// If a search gives something else; with `what`, which says when.
    fn compare(conn: &mut Conn, dice: &mut StdRng, sees: &Rows<Self::Row>, what: &str);
}

/// A connection, what it sees, and what it has at a savepoint.
struct Session<R> {
    conn: Conn,
    sees: Rows<R>,
    at_savepoint: Option<Rows<R>>,
    in_transaction: bool,
}

fn sessions<R>(server: &Server) -> [Session<R>; 2] {
    std::array::from_fn(|_| Session {
        conn: server.connect_to("test"),
        sees: Rows::new(),
        at_savepoint: None,
        in_transaction: false,
    })
}

/// Runs the history of a seed.
///
/// # Panics
/// If a search does not give what the model has, or CHECK TABLE finds something.
pub fn history<M: Modelled>(server: &mut Server, seed: u64) {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut committed = Rows::<M::Row>::new();
    let mut conn = server.connect_to("test");
    run(&mut conn, &["DROP TABLE IF EXISTS t", M::TABLE]);
    let mut sessions = sessions::<M::Row>(server);
    for step in 0..M::STEPS {
        let what = format!("seed {seed}, step {step}");
        let number = dice.random_range(0..2);
        let one = &mut sessions[number as usize];
        if !one.in_transaction {
            run(&mut one.conn, &["START TRANSACTION WITH CONSISTENT SNAPSHOT"]);
            one.sees = committed.clone();
            one.at_savepoint = None;
            one.in_transaction = true;
        }
        match dice.random_range(0..M::CHANGES + 6).checked_sub(M::CHANGES) {
            None => M::change(&mut one.conn, &mut dice, number, &mut one.sees),
            Some(0) => {
                run(&mut one.conn, &["SAVEPOINT s"]);
                one.at_savepoint = Some(one.sees.clone());
            }
            Some(1) => {
                if let Some(sees) = one.at_savepoint.clone() {
                    run(&mut one.conn, &["ROLLBACK TO SAVEPOINT s"]);
                    one.sees = sees;
                }
            }
            Some(2) => {
                run(&mut one.conn, &["ROLLBACK"]);
                one.in_transaction = false;
            }
            Some(3) => {
                run(&mut one.conn, &["COMMIT"]);
                one.in_transaction = false;
                let is_own = |id: &u32| (id - 1) % 2 == number;
                committed.retain(|id, _| !is_own(id));
                let own = one.sees.iter().filter(|(id, _)| is_own(id));
                committed.extend(own.map(|(id, row)| (*id, row.clone())));
            }
            Some(4) if dice.random_bool(M::KILLS) => {
                server.kill9();
                server.restart();
                sessions = self::sessions(server);
                conn = server.connect_to("test");
                M::compare(&mut conn, &mut dice, &committed, &what);
                check(&mut conn, "t");
            }
            Some(_) => M::compare(&mut one.conn, &mut dice, &one.sees, &what),
        }
        if dice.random_bool(0.1) {
            M::compare(&mut conn, &mut dice, &committed, &what);
        }
    }
    drop(sessions);
    check(&mut conn, "t");
}
