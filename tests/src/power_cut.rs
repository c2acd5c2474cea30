//! A server whose machine can lose its power: its data directory is a file system on a loop device.
//!
//! A kill leaves to the next start all that the server wrote, synced or not. A power cut takes
//! what the file system has not yet brought to the device: data without a sync, and names that
//! were made, changed or removed since the file system's last commit. (What a device keeps in
//! a volatile cache in the device survives here; the simulated storage of the pool loses that too.)
//!
//! [`Machine::cut_power`] shuts the file system down as the kernel does it for a device that is
//! gone: from that call on, nothing reaches the image, neither from the page cache nor from the
//! journal in memory. Then the server is killed, the image is mounted anew, and the file system's
//! own recovery runs. Where a file system has no such call, the image is copied while the server is
//! stopped (SIGSTOP), and the copy is mounted.
//!
//! The file systems are mounted with a long commit interval, so that a test does not depend on
//! how fast it is: everything since the last sync that commits the journal is still lost minutes
//! later. A sync of any file commits the whole journal on ext4.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal};

use crate::server::{Options, Server, wait_until};

/// Sparse, so this is no more than an upper limit. btrfs and XFS refuse small devices.
const IMAGE_BYTES: u64 = 768 << 20;

/// What the data directory is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// With ordered data, as Linux mounts it.
    Ext4,
    /// Its log is written by a timer, every 30 seconds, or by a sync.
    Xfs,
    /// It copies on write; a sync of one file does not commit the others.
    Btrfs,
}

impl FileSystem {
    /// All of them.
    pub const ALL: [FileSystem; 3] = [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs];

    /// As `mount -t` has it.
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
        }
    }

    fn mkfs_options(self) -> &'static [&'static str] {
        match self {
            FileSystem::Ext4 => &["-q", "-m", "0"],
            FileSystem::Xfs | FileSystem::Btrfs => &["-q"],
        }
    }

    fn mount_options(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "loop,commit=600,noinit_itable",
            FileSystem::Xfs => "loop,nouuid",
            FileSystem::Btrfs => "loop,commit=300",
        }
    }
}

/// A server, and the device that its data directory is on.
#[derive(Debug)]
pub struct Machine {
    /// It may be killed, stopped and started as any other.
    pub server: Server,
    disk: Disk,
}

impl Machine {
    /// Makes the file system and the data directory on it, and starts a server there. All of it is
    /// durable then.
    ///
    /// `None`, with a message that the test is skipped, where this user can't mount such a file
    /// system.
    ///
    /// # Panics
    /// If the server does not start.
    pub fn start(options: Options, kind: FileSystem) -> Option<Machine> {
        let mut machine = Machine::create(options, kind)?;
        machine.server.launch().unwrap_or_else(|e| panic!("{e}"));
        machine.sync_disk();
        Some(machine)
    }

    /// The same without the start.
    pub fn create(options: Options, kind: FileSystem) -> Option<Machine> {
        let mut disk = None;
        let server = Server::create_on(options, |data_dir| {
            let made = Disk::new(kind, data_dir);
            let made = made.inspect_err(|why| {
                tidepool_skip::skip(format!("no {} on a loop device here: {why}", kind.name()));
            });
            disk = made.ok();
            disk.is_some()
        });
        let machine = server.zip(disk).map(|(server, disk)| Machine { server, disk })?;
        machine.sync_disk();
        Some(machine)
    }

    /// Cuts the power, and turns it on again: the server is dead, and the data directory has what
    /// the file system makes of the device. The server may have been killed before.
    ///
    /// # Panics
    /// If the file system can't be mounted again.
    pub fn cut_power(&mut self) {
        let pid = self.server.pid().and_then(|pid| Pid::from_raw(pid as i32));
        let signal = |signal| {
            pid.map(|pid| rustix::process::kill_process(pid, signal).expect("can be signalled"))
        };
        if self.disk.shut_down() {
            self.server.kill9();
            self.disk.unmount();
        } else {
            signal(Signal::STOP);
            let copy = self.disk.copy_image();
            self.server.kill9();
            self.disk.unmount();
            std::fs::rename(copy, &self.disk.image).expect("the copy takes the image's place");
        }
        self.disk.mount().unwrap_or_else(|why| panic!("after the power cut: {why}"));
    }

    /// Makes durable what the file system has by now, as time would.
    ///
    /// # Panics
    /// If it can't be synced.
    pub fn sync_disk(&self) {
        let dir = File::open(&self.disk.mount_point).expect("a directory can be opened");
        rustix::fs::syncfs(&dir).expect("the file system can be synced");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.server.end();
        self.disk.unmount();
        if self.server.is_kept() {
            eprintln!("the data directory is in {}", self.disk.image.display());
        }
    }
}

/// An image file with a file system, mounted.
#[derive(Debug)]
struct Disk {
    kind: FileSystem,
    image: PathBuf,
    mount_point: PathBuf,
}

impl Disk {
    fn new(kind: FileSystem, mount_point: &Path) -> Result<Disk, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("this needs root".into());
        }
        let image = mount_point.with_extension("image");
        let disk = Disk { kind, image, mount_point: mount_point.into() };
        let made = File::create(&disk.image).and_then(|file| file.set_len(IMAGE_BYTES));
        made.map_err(|error| error.to_string())?;
        let mkfs = format!("mkfs.{}", kind.name());
        run(Command::new(mkfs).args(kind.mkfs_options()).arg(&disk.image))?;
        std::fs::create_dir_all(mount_point).map_err(|error| error.to_string())?;
        disk.mount()?;
        // A server would take it for a database.
        let _ = std::fs::remove_dir(mount_point.join("lost+found"));
        Ok(disk)
    }

    fn mount(&self) -> Result<(), String> {
        let mut mount = Command::new("mount");
        mount.args(["-t", self.kind.name(), "-o", self.kind.mount_options()]);
        run(mount.arg(&self.image).arg(&self.mount_point))
    }

    /// The kernel may still be closing files of a process that has just died.
    fn unmount(&self) {
        let patience = std::time::Duration::from_secs(20);
        wait_until(patience, "the file system can be unmounted", || {
            run(Command::new("umount").arg(&self.mount_point)).is_ok()
        });
    }

    /// From here on nothing is written to the device. `false` if this file system can't do that.
    fn shut_down(&self) -> bool {
        // FS_IOC_SHUTDOWN with FS_SHUTDOWN_FLAGS_NOLOGFLUSH, of <linux/fs.h>.
        const SHUTDOWN: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(b'X', 125);
        const WITHOUT_LOG_FLUSH: u32 = 2;
        let dir = File::open(&self.mount_point).expect("a directory can be opened");
        // SAFETY: the request reads one u32 behind the pointer, which is what a Setter of u32
        // gives.
        let done = unsafe {
            let request = rustix::ioctl::Setter::<SHUTDOWN, u32>::new(WITHOUT_LOG_FLUSH);
            rustix::ioctl::ioctl(&dir, request)
        };
        done.is_ok()
    }

    fn copy_image(&self) -> PathBuf {
        let copy = self.image.with_extension("copy");
        let mut cp = Command::new("cp");
        run(cp.args(["--sparse=always", "--reflink=auto"]).arg(&self.image).arg(&copy))
            .unwrap_or_else(|why| panic!("{why}"));
        copy
    }
}

/// Runs a program to its end; or what it said.
fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
    if output.status.success() { Ok(()) } else { Err(format!("{program}: {said}")) }
}
