//! One resizer at a time.
//!
//! A step down changes settings for a moment and sets back what it found (`mariadb_shrink.rs`). Two
//! of them at once would each find the other's, and what the user had set would be lost: the unit
//! and a `govern` by hand, `watch`'s slider beside either, or a `govern` whose predecessor was
//! killed while its statement goes on in the server. So a program that resizes holds a named lock
//! of the server. It belongs to the connection, and the server keeps it until a statement under way
//! has ended, also when the client is gone.
//!
//! Any account may take a lock of this name and keep it, so it is a courtesy and no permission. A
//! resizer holds it for one step. One that is held for longer, by a connection that resizes
//! nothing, is [ignored](Contention::ignores). A step that ignores it changes the size alone and
//! none of the settings, so there is nothing for two of them to set back.

use std::time::{Duration, Instant};

use crate::exit::{Error, Result};
use crate::server::{Server, text};

/// The longest that a connection may hold it without a resize.
const IDLE_HOLDER: Duration = Duration::from_secs(5);
/// The same when memory runs out now.
const IDLE_HOLDER_URGENT: Duration = Duration::from_millis(500);
/// The longest with one: MariaDB gives up a step after 15 s without progress.
const BUSY_HOLDER: Duration = Duration::from_secs(20);
/// No idle holder is waited for within this time after one was ignored.
const DISTRUST: Duration = Duration::from_secs(600);

const NAME: &str = "tidepool_resize";

/// What became of asking for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// It is this connection's.
    Held,
    /// It is another's, of this id if that could be asked.
    Taken(Option<u64>),
    /// This server has no such locks, as one in a Galera cluster may have none.
    Unknown,
}

/// Asks for the lock, and waits at most this many seconds for it.
///
/// # Errors
/// [`Error::Gone`].
pub fn take(server: &mut Server, wait_s: u64) -> Result<Lock> {
    let what = "the lock for resizing";
    let query = format!("SELECT GET_LOCK('{NAME}', {wait_s})");
    match server.first::<Option<u64>>(what, "", &query) {
        Ok(Some(Some(1))) => Ok(Lock::Held),
        Ok(_) => {
            let holder = format!("SELECT IS_USED_LOCK('{NAME}')");
            Ok(Lock::Taken(server.first::<Option<u64>>(what, "", &holder)?.flatten()))
        }
        Err(error @ Error::Gone(_)) => Err(error),
        Err(_) => Ok(Lock::Unknown),
    }
}

/// Gives it back. Where that fails the connection is gone, and the lock with it.
pub fn release(server: &mut Server) {
    let _ = server.execute("the lock for resizing", "", &format!("DO RELEASE_LOCK('{NAME}')"));
}

/// That another one holds it, for people.
pub fn taken(holder: Option<u64>) -> String {
    match holder {
        Some(id) => format!("connection {id} holds the resize lock"),
        None => "another connection holds the resize lock".into(),
    }
}

/// The lock while it is another's.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    /// The connection that has it, if that is known.
    pub holder: Option<u64>,
    /// Whether a resize is under way in the server.
    pub is_resizing: bool,
    /// Whether memory runs out now.
    pub is_urgent: bool,
}

/// How long the lock has been another's.
#[derive(Debug, Default)]
pub struct Contention {
    since: Option<Instant>,
    distrusted_until: Option<Instant>,
}

impl Contention {
    /// The lock was had.
    pub fn over(&mut self) {
        self.since = None;
    }

    /// Whether a step should be taken although another has the lock, with the reason in words.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn ignores(
        &mut self,
        server: &mut Server,
        Held { holder, is_resizing, is_urgent }: Held,
    ) -> Result<Option<String>> {
        let (statement, account) = statement_of(server, holder)?;
        let works = is_resizing || is_step(&statement);
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        let is_distrusted = self.distrusted_until.is_some_and(|until| Instant::now() < until);
        if waited < (Wait { works, is_urgent, is_distrusted }).longest() {
            return Ok(None);
        }
        self.distrusted_until = Some(Instant::now() + DISTRUST);
        Ok(Some(ignored(holder, &account)))
    }
}

/// That the lock is ignored, for people.
fn ignored(holder: Option<u64>, account: &str) -> String {
    let who = if account.is_empty() { String::new() } else { format!(" ({account})") };
    let end = holder.map_or(String::new(), |id| format!(". To end that: KILL {id}"));
    format!("{}{who} and resizes nothing: the lock is ignored{end}", taken(holder))
}

/// What a wait for the lock depends on.
struct Wait {
    works: bool,
    is_urgent: bool,
    is_distrusted: bool,
}

impl Wait {
    fn longest(&self) -> Duration {
        match (self.works, self.is_distrusted, self.is_urgent) {
            (true, ..) => BUSY_HOLDER,
            (false, true, _) => Duration::ZERO,
            (false, false, true) => IDLE_HOLDER_URGENT,
            (false, false, false) => IDLE_HOLDER,
        }
    }
}

/// Whether a statement can be a step of this program's.
fn is_step(statement: &str) -> bool {
    ["SET GLOBAL innodb_buffer_pool_size", "BEGIN NOT ATOMIC"]
        .iter()
        .any(|begin| statement.trim_start().starts_with(begin))
}

/// What a connection executes, and whose it is; empty where this user may not see it.
fn statement_of(server: &mut Server, holder: Option<u64>) -> Result<(String, String)> {
    let Some(id) = holder else { return Ok(Default::default()) };
    let query = format!(
        "SELECT info, CONCAT(user, '@', host) FROM information_schema.processlist WHERE id = {id}"
    );
    type Columns = (Option<Vec<u8>>, Option<Vec<u8>>);
    match server.first::<Columns>("the resize lock's holder", "", &query) {
        Ok(row) => {
            let (info, account) = row.unwrap_or_default();
            Ok((text(info.unwrap_or_default()), text(account.unwrap_or_default())))
        }
        Err(error @ Error::Gone(_)) => Err(error),
        Err(_) => Ok(Default::default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_is_not_known_is_not_to_be_killed() {
        let known = ignored(Some(7), "'u'@'h'");
        assert!(known.contains("connection 7") && known.ends_with("KILL 7"), "{known}");
        let unknown = ignored(None, "");
        assert!(unknown.contains("ignored") && !unknown.contains("KILL"), "{unknown}");
    }

    #[test]
    fn a_holder_that_resizes_is_waited_for_and_another_is_not() {
        let idle = Wait { works: false, is_urgent: false, is_distrusted: false };
        assert_eq!(idle.longest(), IDLE_HOLDER);
        assert_eq!(Wait { is_urgent: true, ..idle }.longest(), IDLE_HOLDER_URGENT);
        assert_eq!(Wait { is_distrusted: true, ..idle }.longest(), Duration::ZERO);
        let works = Wait { works: true, is_urgent: true, is_distrusted: true };
        assert_eq!(works.longest(), BUSY_HOLDER);
        assert!(
            is_step("SET GLOBAL innodb_buffer_pool_size = 5") && is_step(" BEGIN NOT ATOMIC x")
        );
        assert!(!is_step("SELECT SLEEP(9) /* SET GLOBAL innodb_buffer_pool_size */"));
    }
}
