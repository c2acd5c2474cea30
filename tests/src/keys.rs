//! A server with a key management plugin, and the file of its keys.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::environment::Environment;
use crate::server::Options;

/// A directory with the engine's plugin and the server's key management plugins; it goes with this.
pub struct PluginDir(pub PathBuf);

impl Drop for PluginDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes such a directory, named after a test.
pub fn plugin_dir(name: &str) -> PluginDir {
    let environment = Environment::get();
    let dir = environment.test_dir().join(format!("{name}-plugins-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("a directory can be made");
    let stock = environment.path("STOCK_PLUGIN_DIR");
    let ours = environment.plugin_dir().join("ha_tidepool.so");
    let keys = ["file_key_management.so", "debug_key_management.so"].map(|file| stock.join(file));
    for file in [&ours].into_iter().chain(&keys) {
        symlink(file, dir.join(file.file_name().expect("a name"))).expect("a link can be made");
    }
    PluginDir(dir)
}

/// Writes a file of keys with these numbers, all of version 1, into the directory.
pub fn key_file(dir: &Path, ids: &[u32]) -> PathBuf {
    let key = |id: &u32| format!("{id};{:064x}\n", u64::from(*id) * 0x1234_5678_9abc_def1);
    let file = dir.join("keys.txt");
    fs::write(&file, ids.iter().map(key).collect::<String>()).expect("a file can be written");
    file
}

/// A server whose key management plugin has keys with these numbers. The directory has to live as
/// long as the server.
pub fn with_keys(name: &str, ids: &[u32]) -> (Options, PluginDir) {
    let dir = plugin_dir(name);
    let keys = key_file(&dir.0, ids);
    let options = Options::new(name)
        .arg(format!("--plugin-dir={}", dir.0.display()))
        .arg("--plugin-load-add=file_key_management.so")
        .arg(format!("--file-key-management-filename={}", keys.display()))
        .arg("--tidepool-encryption-rotation-iops=100000");
    (options, dir)
}
