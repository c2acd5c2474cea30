//! A connection that others may kill, replaced when it is lost.

use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;

use mysql::Conn;
use mysql::prelude::Queryable;

use super::stage::{Count, DATABASE, Stage};
use crate::server::connect_to_socket;

/// The connection is gone: killed, or the server was.
#[derive(Debug)]
pub struct Lost;

/// How a statement ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// As before, with no row changed, beside a KILL. The server says so, too, of an UPDATE or a
    /// DELETE that it interrupts while it looks for a range to read, and has then done nothing
    /// (`SQL_SELECT::test_quick_select` gives an error, for which there is no message).
    Unsure,
    /// An error of this number.
    Failed(u16),
}

/// Errors that say that the connection ends: the server stops, or the session was killed.
const ENDING: [u16; 3] = [1053, 1927, 1152];

/// A session. See the [module](self).
pub struct Session<'a> {
    /// Its place among the stage's sessions.
    number: usize,
    stage: &'a Stage,
    conn: Option<Conn>,
    /// The server's life in which it connected.
    life: u64,
}

impl<'a> Session<'a> {
    pub fn new(number: usize, stage: &'a Stage) -> Session<'a> {
        Session { number, stage, conn: None, life: 0 }
    }

    /// Connects if need be, when the server has ended the earlier connection; answers whether it
    /// did.
    pub fn ensure(&mut self) -> Result<bool, Lost> {
        if self.conn.is_some() {
            return Ok(false);
        }
        let life = self.stage.life.load(Ordering::SeqCst);
        let Ok(mut conn) = connect_to_socket(&self.stage.socket, DATABASE) else {
            sleep(Duration::from_millis(20));
            return Err(Lost);
        };
        let slot = &self.stage.sessions[self.number];
        let earlier = slot.load(Ordering::SeqCst);
        // Numbers begin anew with the server.
        while life == self.life && earlier != 0 && !self.stage.has_ended() {
            let sql = format!("SELECT ID FROM information_schema.PROCESSLIST WHERE ID = {earlier}");
            match conn.query_first::<u64, _>(&sql) {
                Ok(None) => break,
                Ok(Some(_)) => sleep(Duration::from_millis(5)),
                Err(_) => return Err(Lost),
            }
        }
        slot.store(conn.connection_id(), Ordering::SeqCst);
        (self.conn, self.life) = (Some(conn), life);
        Ok(true)
    }

    /// Ends the connection.
    pub fn disconnect(&mut self) {
        self.conn = None;
    }

    /// Has a statement run; the inner error is the server's.
    pub fn ask<T>(
        &mut self,
        ask: impl FnOnce(&mut Conn) -> mysql::Result<T>,
    ) -> Result<Result<T, u16>, Lost> {
        if self.stage.has_ended() {
            // What is asked again and again has an end, too.
            return Err(Lost);
        }
        let answer = ask(self.conn.as_mut().ok_or(Lost)?);
        self.stage.count(Count::Statements);
        match answer {
            Ok(answer) => Ok(Ok(answer)),
            Err(mysql::Error::MySqlError(error)) if !ENDING.contains(&error.code) => {
                Ok(Err(error.code))
            }
            Err(_) => {
                self.conn = None;
                Err(Lost)
            }
        }
    }

    /// Has a statement run that gives no rows.
    pub fn run(&mut self, sql: &str) -> Result<Answer, Lost> {
        let answer = self.ask(|conn| conn.query_drop(sql))?;
        Ok(answer.map_or_else(Answer::Failed, |()| Answer::Done))
    }

    /// The same of one that changes rows.
    pub fn change(&mut self, sql: &str) -> Result<Answer, Lost> {
        let before = self.stage.kills_noted(self.number);
        let answer = self.ask(|conn| conn.query_drop(sql).map(|()| conn.affected_rows()))?;
        let is_killed = !before.is_multiple_of(2) || self.stage.kills_noted(self.number) != before;
        Ok(match answer {
            Ok(0) if is_killed => Answer::Unsure,
            Ok(_) => Answer::Done,
            Err(code) => Answer::Failed(code),
        })
    }

    /// Has a statement run again and again until it is not interrupted.
    pub fn insist(&mut self, sql: &str) -> Result<(), Lost> {
        while self.run(sql)? != Answer::Done {}
        Ok(())
    }

    /// Whether a transaction is open. The question may be interrupted, too: then it is asked again.
    pub fn in_transaction(&mut self) -> Result<bool, Lost> {
        loop {
            let answer = self.ask(|conn| conn.query_first::<u8, _>("SELECT @@in_transaction"))?;
            if let Ok(Some(open)) = answer {
                return Ok(open != 0);
            }
        }
    }
}
