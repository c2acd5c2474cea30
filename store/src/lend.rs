//! Values that each thread keeps for its calls, also at the thread's end.

use std::cell::RefCell;
use std::thread::LocalKey;

/// Lends `body` the thread's value. A thread that ends drops its values one after the other, and
/// the drop of one may use the engine: what a program keeps in a thread-local rolls back, or closes
/// a database. If the value is gone by then, `body` gets a new one.
pub fn lend<T, R>(
    value: &'static LocalKey<RefCell<T>>,
    new: impl FnOnce() -> T,
    body: impl FnOnce(&mut T) -> R,
) -> R {
    let mut body = Some(body);
    let mut lend = |value: &mut T| body.take().expect("a value is lent once")(value);
    match value.try_with(|value| lend(&mut value.borrow_mut())) {
        Ok(result) => result,
        Err(_) => lend(&mut new()),
    }
}
