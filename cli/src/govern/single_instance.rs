//! One governor a server.
//!
//! Two governors with other bounds would undo each other's steps for ever. So a governor binds a
//! name of the machine, an abstract Unix socket that is called after the server's process, and the
//! kernel frees the name when the governor ends, however it ends. A lock of the server would not
//! do: any account could take it. Nor may any user of the machine: a name that is bound by another
//! user than root, the server's or this one is passed over.
//!
//! Who has the name is asked by a connection. The kernel queues it until the holder accepts it, and
//! a full queue keeps a connection waiting for ever. So a holder empties its queue now and then, a
//! governor that waits connects once to each holder, and no connection waits.
//!
//! The name is of a network namespace, so two governors in different containers do not see each
//! other. The second is noticed by the sizes that it sets ([`super`]).

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::thread::sleep;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tidepool_governor::kernel::Root;

use crate::facts::process::Running;

/// A name whose holder does not listen is tried again so often, and with this time between two
/// tries: the holder has just ended, or has not begun to listen.
const TRIES: u32 = 20;
const TRY_EVERY: Duration = Duration::from_millis(50);
/// Connections that are taken out of the queue at once.
const ACCEPTED_MAX: usize = 64;

/// What became of binding the name.
#[derive(Debug)]
pub enum SingleInstance {
    /// It is this process's, for as long as the claim lives.
    Ours(Claim),
    /// This process governs already.
    Another(Running),
    /// It can't be had, for this reason, and no governor is known.
    Unknown(String),
}

/// The name.
#[derive(Debug)]
pub struct Claim(UnixListener);

impl Claim {
    /// Takes out of the queue who has asked for the holder.
    pub fn empty_queue(&self) {
        for _ in 0..ACCEPTED_MAX {
            if self.0.accept().is_err() {
                return;
            }
        }
    }
}

/// Binds the name of the server's process. `known` had the name at the try before.
pub fn bind(server: Running, known: Option<Running>) -> SingleInstance {
    bind_name(&format!("tidepool-govern-{}", server.key()), owner(server.pid), known)
}

fn bind_name(name: &str, owner: Option<u32>, known: Option<Running>) -> SingleInstance {
    for _ in 0..TRIES {
        match try_name(name, owner, known) {
            Ok(Some(found)) => return found,
            Ok(None) => sleep(TRY_EVERY),
            Err(error) => return SingleInstance::Unknown(error.to_string()),
        }
    }
    SingleInstance::Unknown("its name is taken by a process that does not listen".into())
}

/// `None` where the name was taken, and has no holder now.
fn try_name(
    name: &str,
    owner: Option<u32>,
    known: Option<Running>,
) -> std::io::Result<Option<SingleInstance>> {
    let bound = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?);
    match bound {
        Ok(listener) => {
            listener.set_nonblocking(true)?;
            Ok(Some(SingleInstance::Ours(Claim(listener))))
        }
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            match known.filter(|known| known.runs(&Root::default())) {
                Some(known) => Ok(Some(SingleInstance::Another(known))),
                None => holder(name, owner),
            }
        }
        Err(error) => Err(error),
    }
}

fn holder(name: &str, owner: Option<u32>) -> std::io::Result<Option<SingleInstance>> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&stream, &SocketAddrUnix::new_abstract_name(name.as_bytes())?) {
        Ok(()) => {}
        Err(Errno::CONNREFUSED) => return Ok(None),
        Err(Errno::AGAIN) => {
            let why = "its name is taken by a process that accepts no connection";
            return Ok(Some(SingleInstance::Unknown(why.into())));
        }
        Err(error) => return Err(error.into()),
    }
    let peer = socket_peercred(&stream)?;
    let uid = peer.uid.as_raw();
    let own = rustix::process::geteuid().as_raw();
    let pid = peer.pid.as_raw_nonzero().get();
    if uid != 0 && uid != own && Some(uid) != owner {
        let why = format!("process {pid} of user {uid} has taken its name");
        return Ok(Some(SingleInstance::Unknown(why)));
    }
    // One that can't be found has just ended.
    let running = Running::find(&Root::default(), pid.unsigned_abs());
    Ok(running.map(SingleInstance::Another))
}

/// The user that a process runs as.
fn owner(pid: u32) -> Option<u32> {
    Some(std::fs::metadata(format!("/proc/{pid}")).ok()?.uid())
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::mpsc::channel;

    use rustix::net::{bind, listen};

    use super::*;

    /// A name that no other test has.
    fn name(of: &str) -> String {
        format!("tidepool-test-{of}-{}", std::process::id())
    }

    /// The name, taken by a process that does not listen yet.
    fn taken(name: &str) -> OwnedFd {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        socket
    }

    #[test]
    fn a_name_is_had_once_and_free_again_when_its_holder_ends() {
        let name = name("once");
        let SingleInstance::Ours(first) = bind_name(&name, None, None) else {
            panic!("it is free")
        };
        let SingleInstance::Another(holder) = bind_name(&name, None, None) else {
            panic!("it is taken")
        };
        assert_eq!(holder.pid, std::process::id());
        drop(first);
        assert!(matches!(bind_name(&name, None, Some(holder)), SingleInstance::Ours(_)));
    }

    #[test]
    fn a_holder_is_asked_once_and_empties_its_queue() {
        let name = name("queue");
        let SingleInstance::Ours(claim) = bind_name(&name, None, None) else {
            panic!("it is free")
        };
        let SingleInstance::Another(holder) = bind_name(&name, None, None) else {
            panic!("it is taken")
        };
        claim.empty_queue();
        let is_empty = || claim.0.accept().is_err();
        assert!(is_empty(), "the first question is taken out of the queue");
        let again = bind_name(&name, None, Some(holder));
        assert!(matches!(again, SingleInstance::Another(other) if other == holder), "{again:?}");
        assert!(is_empty(), "a holder that is known is not asked again");
    }

    #[test]
    fn a_full_queue_keeps_nothing_waiting() {
        let name = name("full");
        let listener = taken(&name);
        listen(&listener, 0).unwrap();
        let (answer, answered) = channel();
        std::thread::spawn(move || {
            // The first fills the queue.
            let answers = [(); 3].map(|()| bind_name(&name, None, None));
            let _ = answer.send(answers);
        });
        let answers = answered.recv_timeout(Duration::from_secs(60)).expect("no try waits");
        assert!(matches!(answers[0], SingleInstance::Another(_)), "{answers:?}");
        assert!(matches!(answers[2], SingleInstance::Unknown(_)), "{answers:?}");
        drop(listener);
    }

    #[test]
    fn a_name_whose_holder_does_not_listen_is_tried_again() {
        let name = name("refused");
        let listener = taken(&name);
        assert!(try_name(&name, None, None).unwrap().is_none());
        listen(&listener, 0).unwrap();
        let found = bind_name(&name, None, None);
        assert!(matches!(found, SingleInstance::Another(_)), "{found:?}");
    }
}
