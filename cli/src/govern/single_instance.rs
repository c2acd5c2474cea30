//! One governor a server.
//!
//! Two governors with other bounds would undo each other's steps for ever. So a governor binds a
//! name of the machine, an abstract Unix socket that is called after the server's process, and the
//! kernel frees the name when the governor ends, however it ends. A lock of the server would not
//! do: any account could take it. Nor may any user of the machine: a name that is bound by another
//! user than root, the server's or this one is passed over.
//!
//! The name is of a network namespace, so two governors in different containers do not see each
//! other. The second is noticed by the sizes that it sets ([`super`]).

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use rustix::net::sockopt::socket_peercred;

use crate::facts::process::Running;

/// What became of binding the name.
#[derive(Debug)]
pub enum SingleInstance {
    /// It is this process's, for as long as the listener lives.
    Ours(UnixListener),
    /// This process governs already.
    Another(u32),
    /// It can't be had, for this reason, and no governor is known.
    Unknown(String),
}

/// Binds the name of the server's process.
pub fn bind(server: Running) -> SingleInstance {
    bind_name(&format!("tidepool-govern-{}", server.key()), owner(server.pid))
}

fn bind_name(name: &str, owner: Option<u32>) -> SingleInstance {
    let address = match SocketAddr::from_abstract_name(name) {
        Ok(address) => address,
        Err(error) => return SingleInstance::Unknown(error.to_string()),
    };
    match UnixListener::bind_addr(&address) {
        Ok(listener) => SingleInstance::Ours(listener),
        Err(error) if error.kind() == ErrorKind::AddrInUse => holder(&address, owner),
        Err(error) => SingleInstance::Unknown(error.to_string()),
    }
}

fn holder(address: &SocketAddr, owner: Option<u32>) -> SingleInstance {
    let peer = UnixStream::connect_addr(address)
        .and_then(|stream| socket_peercred(&stream).map_err(Into::into));
    match peer {
        Ok(peer) => {
            let uid = peer.uid.as_raw();
            let own = rustix::process::geteuid().as_raw();
            if uid == 0 || uid == own || Some(uid) == owner {
                return SingleInstance::Another(peer.pid.as_raw_nonzero().get().unsigned_abs());
            }
            let pid = peer.pid.as_raw_nonzero();
            SingleInstance::Unknown(format!("process {pid} of user {uid} has taken its name"))
        }
        // It has just ended, or takes no connection: the next try says more.
        Err(error) => SingleInstance::Unknown(error.to_string()),
    }
}

/// The user that a process runs as.
fn owner(pid: u32) -> Option<u32> {
    Some(std::fs::metadata(format!("/proc/{pid}")).ok()?.uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_had_once_and_free_again_when_its_holder_ends() {
        let name = format!("tidepool-test-{}", std::process::id());
        let SingleInstance::Ours(first) = bind_name(&name, None) else { panic!("it is free") };
        let SingleInstance::Another(pid) = bind_name(&name, None) else { panic!("it is taken") };
        assert_eq!(pid, std::process::id());
        drop(first);
        assert!(matches!(bind_name(&name, None), SingleInstance::Ours(_)));
    }
}
