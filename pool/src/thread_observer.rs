//! Who hears of the threads: where threads of the pool and of the layers above are started, and
//! what a program may have called in each as it begins and as it ends.
//!
//! Threads that live for one operation only, to sync several files side by side, are not among
//! them.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tidepool_store::OptionalObserver;

use crate::error::{Error, Result};

/// Hears of each thread, in the thread itself. A panic in here is a panic of the thread.
pub trait ThreadObserver: Send + Sync {
    /// The calling thread begins; `name` is what the kernel has as its name, up to 15 bytes of it.
    fn begins(&self, name: &str);

    /// It ends: what comes after this is of the standard library alone.
    fn ends(&self);
}

/// Starts threads, and has the observer hear of them, if there is one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Threads(OptionalObserver<dyn ThreadObserver>);

impl Threads {
    /// The observer hears of every thread.
    pub fn observed_by(observer: Arc<dyn ThreadObserver>) -> Threads {
        Threads(OptionalObserver::some(observer))
    }

    /// Starts a thread of this name.
    ///
    /// # Errors
    /// The process can't have another thread; the error names it.
    pub fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
        let thread = thread::Builder::new().name(name.to_owned());
        let started = match self.0.get().cloned() {
            None => thread.spawn(run),
            Some(observer) => {
                let name = name.to_owned();
                thread.spawn(move || {
                    observer.begins(&name);
                    let _observed = Observed(observer);
                    run();
                })
            }
        };
        started.map_err(|error| Error::system(format!("starting thread {name}"), error))
    }
}

/// A thread that has begun, and ends by a return or by a panic.
struct Observed(Arc<dyn ThreadObserver>);

impl Drop for Observed {
    fn drop(&mut self) {
        self.0.ends();
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[derive(Default)]
    struct Heard(Mutex<Vec<String>>);

    impl ThreadObserver for Heard {
        fn begins(&self, name: &str) {
            assert_eq!(thread::current().name(), Some(name), "it is heard in the thread");
            self.0.lock().push(format!("begins {name}"));
        }

        fn ends(&self) {
            self.0.lock().push(format!("ends {}", thread::current().name().expect("it has one")));
        }
    }

    #[test]
    fn each_thread_begins_and_ends_be_it_by_a_panic() {
        let heard = Arc::new(Heard::default());
        let threads = Threads::observed_by(heard.clone());
        threads.spawn("returns", || ()).unwrap().join().unwrap();
        threads.spawn("panics", || panic!("on purpose")).unwrap().join().unwrap_err();
        let heard = std::mem::take(&mut *heard.0.lock());
        assert_eq!(heard, ["begins returns", "ends returns", "begins panics", "ends panics"]);
        Threads::default().spawn("unheard", || ()).unwrap().join().unwrap();
    }

    #[test]
    fn threads_are_the_same_if_one_observer_hears_of_them() {
        let one = Threads::observed_by(Arc::new(Heard::default()));
        assert_eq!(one, one.clone());
        assert_eq!(Threads::default(), Threads::default());
        assert_ne!(one, Threads::default());
        assert_ne!(one, Threads::observed_by(Arc::new(Heard::default())));
    }
}
