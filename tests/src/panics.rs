//! A test that panics takes its servers with it.
//!
//! Threads of a test repeat statements until they are asked to stop, or wait for one that the test
//! would let go on. If the test panics, the end of its scope waits for them, for ever. So a panic
//! kills the processes that its thread has started before anything waits: their statements end with
//! an error.

use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::thread::ThreadId;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The processes that have an owner, each with the thread that started it.
static OWNED: Mutex<Vec<(ThreadId, Weak<OwnedFd>)>> = Mutex::new(Vec::new());

/// Kills the process if the calling thread panics while the returned value is there.
pub(crate) fn kill_with_this_thread(child: &Child) -> Arc<OwnedFd> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            report(panic);
            kill_processes_of(std::thread::current().id());
        }));
    });
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty());
    let process = Arc::new(process.expect("a child can be opened"));
    let mut owned = OWNED.lock().unwrap_or_else(PoisonError::into_inner);
    owned.retain(|(_, process)| process.strong_count() > 0);
    owned.push((std::thread::current().id(), Arc::downgrade(&process)));
    process
}

fn kill_processes_of(thread: ThreadId) {
    let owned = OWNED.lock().unwrap_or_else(PoisonError::into_inner);
    for (_, process) in owned.iter().filter(|(owner, _)| *owner == thread) {
        if let Some(process) = process.upgrade() {
            // It may have ended.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_panic_kills_what_its_thread_has_started_before_it_waits_for_others() {
        let waiter = std::thread::spawn(|| {
            std::thread::scope(|scope| {
                let mut child = Command::new("sleep").arg("600").spawn().expect("it starts");
                let _process = kill_with_this_thread(&child);
                scope.spawn(move || child.wait().expect("a child can be waited for"));
                std::thread::sleep(Duration::from_millis(10));
                panic!("the scope ends when the child does");
            });
        });
        waiter.join().expect_err("it panics");
    }
}
