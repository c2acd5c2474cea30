//! [`OptionalObserver`]: what options hold of an observer.

use std::fmt;
use std::sync::Arc;

/// An observer, or none. Two are equal if both are none, or the same observer.
pub struct OptionalObserver<T: ?Sized>(Option<Arc<T>>);

impl<T: ?Sized> OptionalObserver<T> {
    /// This observer.
    pub fn some(observer: Arc<T>) -> Self {
        Self(Some(observer))
    }

    /// The observer, if there is one.
    pub fn get(&self) -> Option<&Arc<T>> {
        self.0.as_ref()
    }
}

impl<T: ?Sized> Clone for OptionalObserver<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: ?Sized> Default for OptionalObserver<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: ?Sized> fmt::Debug for OptionalObserver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "an observer" } else { "none" })
    }
}

impl<T: ?Sized> PartialEq for OptionalObserver<T> {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}
