//! One resizer at a time.
//!
//! A step down changes settings for a moment and sets back what it found (`shrink.rs`). Two of them
//! at once would each find the other's, and what the user had set would be lost: the unit and a
//! `govern` by hand, `watch`'s slider beside either, or a `govern` whose predecessor was killed
//! while its statement goes on in the server. So a program that resizes holds a named lock of the
//! server. It belongs to the connection, and the server keeps it until a statement under way has
//! ended, also when the client is gone.

use crate::exit::{Error, Result};
use crate::server::Server;

/// Its name.
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
