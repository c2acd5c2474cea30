// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! The server's encryption service as the engine's keyring.
//!
//! The engine asks for each version of a key once, and for the newest version of a key when a file
//! is made or opened, and once a second by its rotation.

use std::ffi::c_int;
use std::sync::{Arc, OnceLock};

use tidepool::{KeyError, KeySource, Keyring};

/// Longest key that a key management plugin gives.
const KEY_MAX: usize = 64;

type NewestVersion = extern "C" fn(id: u32, version: *mut u32) -> c_int;
type KeyBytes = extern "C" fn(id: u32, version: u32, key: *mut u8, len: *mut u32) -> c_int;

static SERVICE: OnceLock<Service> = OnceLock::new();

#[derive(Clone, Copy)]
struct Service {
    newest: NewestVersion,
    key: KeyBytes,
}

/// Where keys come from. Called once, before `tp_open`.
#[unsafe(no_mangle)]
pub extern "C" fn tp_set_keyring(
    newest: extern "C" fn(id: u32, version: *mut u32) -> c_int,
    key: extern "C" fn(id: u32, version: u32, key: *mut u8, len: *mut u32) -> c_int,
) {
    let _ = SERVICE.set(Service { newest, key });
}

/// The keyring, if there is one.
pub(crate) fn keyring() -> Option<KeySource> {
    let service = SERVICE.get()?;
    Some(KeySource(Arc::new(*service)))
}

impl Keyring for Service {
    fn newest_version(&self, id: u32) -> Result<u32, KeyError> {
        let mut version = 0;
        match (self.newest)(id, &mut version) {
            0 => Ok(version),
            _ => Err(missing(id, None)),
        }
    }

    fn key(&self, id: u32, version: u32) -> Result<Vec<u8>, KeyError> {
        let mut bytes = vec![0; KEY_MAX];
        let mut len = KEY_MAX as u32;
        let result = (self.key)(id, version, bytes.as_mut_ptr(), &mut len);
        if result != 0 || len as usize > KEY_MAX {
            return Err(missing(id, Some(version)));
        }
        bytes.truncate(len as usize);
        Ok(bytes)
    }
}

fn missing(id: u32, version: Option<u32>) -> KeyError {
    KeyError { id, version, why: "the server's key management plugin does not have it".into() }
}
