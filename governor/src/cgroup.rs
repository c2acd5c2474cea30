//! Every memory cgroup above the process, versions 1 and 2.
//!
//! A limit may sit on any ancestor: a container's on its own group, a tenant's on a slice two
//! levels up. So each level between the process's group and the mount point is read, and the
//! tightest counts. `/proc/self/cgroup` may list several hierarchies, and the memory controller of
//! version 1 is rarely on its first line.
//!
//! Inside a container with a cgroup namespace the path in `/proc/self/cgroup` can be `/`, or point
//! above what is mounted (`/../..`); then the mount point itself is the process's group as far as
//! it can see.
//!
//! Unless what is mounted there begins above the namespace: many containers have the machine's
//! `/sys/fs/cgroup`, to observe it. Mountinfo says how far above (`/../..`), and not by which names
//! one comes down again. So the group is [searched for](Finder) whose `cgroup.procs` has the
//! process. Where that finds nothing, the limits are unknown, and the log says so.
//!
//! Another process is looked for from where *this* one is: the kernel gives the path in
//! `/proc/<pid>/cgroup` relative to the reader's cgroup namespace, and only the reader's mounts can
//! be opened. (The other's mountinfo names directories in its own mount namespace: of a container,
//! `/sys/fs/cgroup`, which here is the whole machine's.) For its group no mount point is taken that
//! isn't it.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use crate::kernel::{Root, Source, field, pressure_some_total_us};
use crate::signals::Refaults;

/// Limits at or above this are version 1's way to say "none" (`LONG_MAX` rounded down to a page).
const NO_LIMIT: u64 = 1 << 60;

/// Which interface the memory controller has here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// `memory.limit_in_bytes` and its like.
    V1,
    /// `memory.max` and its like.
    V2,
}

/// The memory controller's directories from the process's own group up to the mount point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// The interface.
    pub version: Version,
    /// Own group first, then each ancestor; absolute, below the root.
    pub directories: Vec<PathBuf>,
}

impl Hierarchy {
    /// The files of every level, own group first.
    pub fn files(&self, root: &Root) -> Vec<LevelFiles> {
        let level = |(index, directory): (usize, &PathBuf)| LevelFiles {
            is_own: index == 0,
            ..LevelFiles::new(root, self.version, directory)
        };
        self.directories.iter().enumerate().map(level).collect()
    }
}

/// What one level says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Level {
    /// The group's directory.
    pub directory: PathBuf,
    /// Hard limit in bytes, if there is one. Version 2's `memory.high` counts as one: above it the
    /// kernel throttles.
    pub limit_bytes: Option<u64>,
    /// Bytes charged to the group and its descendants.
    pub usage_bytes: u64,
    /// Bytes of file cache in it, which the kernel takes back before it swaps or kills.
    pub file_cache_bytes: u64,
    /// How often the group ran into its limit, ever.
    pub limit_hits: u64,
}

impl Level {
    /// Bytes that would stay charged, were all file cache given up. They may be over the limit:
    /// `memory.high` can be passed, and either limit be lowered under them.
    pub fn unreclaimable_bytes(&self) -> u64 {
        self.usage_bytes.saturating_sub(self.file_cache_bytes)
    }

    /// Bytes that can still be charged before the limit, were all file cache given up; `None`
    /// without a limit.
    pub fn room_bytes(&self) -> Option<u64> {
        self.limit_bytes.map(|limit| limit.saturating_sub(self.unreclaimable_bytes()))
    }
}

/// This process, as the argument of [`find`].
pub(crate) const OWN: &str = "/proc/self";

/// [`Finder::find`], once.
///
/// # Errors
/// As [`Finder::find`] says.
pub fn find(root: &Root, proc_dir: &Path) -> io::Result<Option<Hierarchy>> {
    Finder::default().find(root, proc_dir)
}

/// Groups that are looked at in a search. A machine with five hundred containers has some thousand,
/// and each takes some ten microseconds.
const SEARCHED_MAX: usize = 10_000;

/// Finds the memory controller of a process again and again, and searches for its group no more
/// often than the process moves.
#[derive(Debug, Default)]
pub struct Finder {
    searched: Option<Searched>,
    doubt: Option<String>,
}

/// A search that was made.
#[derive(Debug)]
struct Searched {
    /// What was known: the process, the mounts, its group as it is named.
    by: (u32, Vec<(String, String)>, String),
    found: Option<Hierarchy>,
}

impl Finder {
    /// Finds the memory controller of the process whose `/proc` directory is `proc_dir`
    /// (`/proc/self`, `/proc/4711`).
    ///
    /// # Errors
    /// When it can't be looked up, as by a process that has no file descriptor left: which is not
    /// to say that there is none. Of kind [`io::ErrorKind::Unsupported`] when another process's
    /// group is out of this one's sight, with the group in the message.
    pub fn find(&mut self, root: &Root, proc_dir: &Path) -> io::Result<Option<Hierarchy>> {
        let text = |path: PathBuf| Ok::<_, io::Error>(letters(&fs::read(root.path(path))?));
        let mounts = text(Path::new(OWN).join("mountinfo"))?;
        let groups = text(proc_dir.join("cgroup"))?;
        let is_own = proc_dir == Path::new(OWN);
        let number = || proc_dir.file_name()?.to_str()?.parse().ok();
        let process =
            Process { is_own, id: if is_own { std::process::id() } else { number().unwrap_or(0) } };
        self.doubt = None;
        self.find_in(root, &mounts, &groups, process)
    }

    /// Why the limits that were found may not be the process's, if it was not to be made out in
    /// which group it is.
    pub fn doubt(&self) -> Option<&str> {
        self.doubt.as_deref()
    }
}

/// Whose group is wanted.
#[derive(Clone, Copy)]
struct Process {
    /// It is this one.
    is_own: bool,
    id: u32,
}

impl Process {
    /// Whether it is in the group `directory`; `None` where the kernel does not say, as of a group
    /// that has threads only.
    fn is_in(self, root: &Root, version: Version, directory: &Path) -> io::Result<Option<bool>> {
        let names: &[&str] = match version {
            Version::V1 => &["cgroup.procs", "tasks"],
            Version::V2 => &["cgroup.procs"],
        };
        let wanted = self.id.to_string();
        for name in names {
            match fs::read(root.path(directory.join(name))) {
                Ok(members) => {
                    return Ok(Some(
                        members.split(|&byte| byte == b'\n').any(|id| id == wanted.as_bytes()),
                    ));
                }
                Err(error) if is_out_of_descriptors(&error) => return Err(error),
                Err(_) => {}
            }
        }
        Ok(None)
    }
}

/// It says nothing of the file.
fn is_out_of_descriptors(error: &io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(error);
    errno.is_some_and(|errno| matches!(errno, rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
}

fn out_of_sight(group: &str) -> io::Error {
    let group = path_of(group);
    let why =
        format!("its memory cgroup {} is not below any that is mounted here", group.display());
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// The bytes of a file as letters, one each: what the syntax is of is ASCII, and a group's name may
/// be any bytes.
fn letters(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

/// The path whose bytes these [`letters`] are.
fn path_of(letters: &str) -> PathBuf {
    OsString::from_vec(letters.chars().map(|letter| letter as u8).collect()).into()
}

/// A process's group in one hierarchy, as the process's `cgroup` file has it.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    version: Version,
    group: &'a str,
    process: Process,
}

impl Finder {
    /// The same from the [`letters`] of this process's `mountinfo` and the other's `cgroup`.
    fn find_in(
        &mut self,
        root: &Root,
        mounts: &str,
        groups: &str,
        process: Process,
    ) -> io::Result<Option<Hierarchy>> {
        let group_of = |wanted: &dyn Fn(&str) -> bool| {
            groups.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':');
                let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
                wanted(controllers).then_some(path)
            })
        };
        let mounted = |wanted: &dyn Fn(&Mount<'_>) -> bool| -> Vec<Mount<'_>> {
            mounts.lines().filter_map(Mount::parse).filter(|mount| wanted(mount)).collect()
        };
        // Version 1 first: where both are mounted, the controller is on one of them only, and a
        // version 1 mount that names it has it.
        let names_memory = |names: &str| names.split(',').any(|name| name == "memory");
        let (v1, v1_group) = (
            mounted(&|mount| mount.kind == "cgroup" && names_memory(mount.options)),
            group_of(&names_memory),
        );
        if !v1.is_empty() {
            let Some(group) = v1_group else { return Ok(None) };
            let wanted = Wanted { version: Version::V1, group, process };
            return self.locate(root, &v1, wanted).map(Some);
        }
        let v2 = mounted(&|mount| mount.kind == "cgroup2");
        let group = v1_group.or_else(|| group_of(&str::is_empty));
        if v1_group.is_some() || v2.is_empty() {
            // The controller isn't mounted here. The root group has no limit that one could miss.
            return match group.filter(|&group| group != "/" && !process.is_own) {
                Some(group) => Err(out_of_sight(group)),
                None => Ok(None),
            };
        }
        let Some(group) = group else { return Ok(None) };
        let wanted = Wanted { version: Version::V2, group, process };
        let hierarchy = self.locate(root, &v2, wanted)?;
        // The root group has no memory.current, so its absence there proves nothing.
        let has_controller =
            hierarchy.directories.iter().any(|d| root.path(d.join("memory.current")).exists());
        Ok(has_controller.then_some(hierarchy))
    }

    /// Where the wanted group is below these mounts of one hierarchy. There is at least one.
    fn locate(
        &mut self,
        root: &Root,
        mounts: &[Mount<'_>],
        wanted: Wanted<'_>,
    ) -> io::Result<Hierarchy> {
        let Wanted { version, group, process } = wanted;
        // The same hierarchy may be mounted more than once, each time from another group down.
        let mut denied = None;
        for mount in mounts {
            let Some(found) = mount.hierarchy(root, version, group) else { continue };
            if process.is_in(root, version, &found.directories[0])? != Some(false) {
                return Ok(found);
            }
            denied.get_or_insert(found);
        }
        if let Some(found) = self.search_once(root, mounts, wanted)? {
            return Ok(found);
        }
        if !process.is_own {
            return denied.ok_or_else(|| out_of_sight(group));
        }
        let point = path_of(&mounts[0].point);
        let is_there = process.is_in(root, version, &point)? == Some(true);
        let as_far_as_seen = denied.unwrap_or_else(|| mounts[0].whole(version));
        if !is_there {
            self.doubt = Some(format!(
                "the process's memory cgroup {} is not found below {}: limits of that group may \
                 be missed; mount the container's cgroup there instead of the machine's, or set a \
                 size",
                path_of(group).display(),
                point.display()
            ));
        }
        Ok(as_far_as_seen)
    }

    /// [`search`] in each mount, unless that was done.
    fn search_once(
        &mut self,
        root: &Root,
        mounts: &[Mount<'_>],
        wanted: Wanted<'_>,
    ) -> io::Result<Option<Hierarchy>> {
        let Wanted { version, group, process } = wanted;
        let places = mounts.iter().map(|mount| (mount.root.to_string(), mount.point.to_string()));
        let by = (process.id, places.collect(), group.to_owned());
        let is_there = |found: &Hierarchy| root.path(&found.directories[0]).is_dir();
        if let Some(searched) = self.searched.as_ref().filter(|searched| searched.by == by)
            && searched.found.as_ref().is_none_or(is_there)
        {
            return Ok(searched.found.clone());
        }
        let mut found = None;
        for mount in mounts {
            let Some(levels) = mount.levels_to(root, version, group) else { continue };
            let point = path_of(&mount.point);
            if let Some(own) = search(root, version, &point, &levels, process)? {
                let above = own.ancestors().take_while(|d| d.starts_with(&point));
                let directories = above.map(Path::to_owned).collect();
                found = Some(Hierarchy { version, directories });
                break;
            }
        }
        self.searched = Some(Searched { by, found: found.clone() });
        Ok(found)
    }
}

/// What is known of the way from a mount point down to a group.
struct Levels {
    /// Through this many groups whose names are unknown; `None`: their number is, too.
    unknown: Option<usize>,
    /// And from there by these names.
    known: PathBuf,
}

/// The group below `point` that the process is in, if it is among the first [`SEARCHED_MAX`].
fn search(
    root: &Root,
    version: Version,
    point: &Path,
    levels: &Levels,
    process: Process,
) -> io::Result<Option<PathBuf>> {
    let mut left = VecDeque::from([(point.to_owned(), 0)]);
    let mut seen = 1;
    while let Some((directory, depth)) = left.pop_front() {
        if levels.unknown.is_none_or(|unknown| unknown == depth) {
            let group = match levels.known.as_os_str().is_empty() {
                true => directory.clone(),
                false => directory.join(&levels.known),
            };
            if process.is_in(root, version, &group)? == Some(true) {
                return Ok(Some(group));
            }
        }
        if levels.unknown.is_some_and(|unknown| unknown == depth) {
            continue;
        }
        let entries = match fs::read_dir(root.path(&directory)) {
            Err(error) if is_out_of_descriptors(&error) => return Err(error),
            // It has gone, or is not for this user.
            Err(_) => continue,
            Ok(entries) => entries,
        };
        for entry in entries.flatten() {
            if seen < SEARCHED_MAX && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                left.push_back((directory.join(entry.file_name()), depth + 1));
                seen += 1;
            }
        }
    }
    Ok(None)
}

/// The files of one level, kept open from one reading to the next.
#[derive(Debug)]
pub struct LevelFiles {
    version: Version,
    directory: PathBuf,
    /// Version 1's limit, or version 2's `memory.max`.
    limit: Source,
    /// Version 2's `memory.high`.
    high: Source,
    usage: Source,
    stat: Source,
    /// How often the limit was hit: `memory.failcnt`, `memory.events`.
    hits: Source,
    pressure: Source,
    /// Whether it is the process's own group.
    is_own: bool,
    /// Of an own group, by the last reading.
    refaults: Option<Refaults>,
}

impl LevelFiles {
    /// The files of `directory`.
    pub fn new(root: &Root, version: Version, directory: &Path) -> LevelFiles {
        let file = |v1: &str, v2: &str| {
            let name = if version == Version::V1 { v1 } else { v2 };
            Source::new(root, directory.join(name))
        };
        LevelFiles {
            version,
            directory: directory.to_owned(),
            limit: file("memory.limit_in_bytes", "memory.max"),
            high: file("memory.high", "memory.high"),
            usage: file("memory.usage_in_bytes", "memory.current"),
            stat: file("memory.stat", "memory.stat"),
            hits: file("memory.failcnt", "memory.events"),
            pressure: file("memory.pressure", "memory.pressure"),
            is_own: false,
            refaults: None,
        }
    }

    /// The group's directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Reads the level; `None` when it says nothing usable (the version 2 root, or a group that
    /// vanished). Of a group above the process's own that has no limit the file cache isn't looked
    /// up, which is most of the cost.
    pub fn read(&mut self) -> Option<Level> {
        self.refaults = None;
        let usage = self.usage.number()?;
        let (limit_bytes, hits) = match self.version {
            Version::V1 => (believable(self.limit.number()), self.hits.number().unwrap_or(0)),
            Version::V2 => {
                let events = self.hits.text().unwrap_or_default();
                let hits = field(events, "max").unwrap_or(0) + field(events, "high").unwrap_or(0);
                // Each by itself: a `high` of zero, which is legal, must not hide `max`.
                let numbers = [self.limit.number(), self.high.number()];
                (numbers.into_iter().filter_map(believable).min(), hits)
            }
        };
        let wants_stat = limit_bytes.is_some() || (self.is_own && self.version == Version::V2);
        let stat = if wants_stat { self.stat.text() } else { None }.unwrap_or_default();
        let cache = match self.version {
            Version::V1 => file_cache(stat, "total_inactive_file", "total_active_file"),
            Version::V2 => file_cache(stat, "inactive_file", "active_file"),
        };
        if self.is_own {
            self.refaults = refaults(stat);
        }
        Some(Level {
            directory: self.directory.clone(),
            limit_bytes,
            usage_bytes: usage,
            file_cache_bytes: cache.min(usage),
            limit_hits: hits,
        })
    }

    /// Nothing but the usage: one read of one number.
    pub fn usage_bytes(&mut self) -> Option<u64> {
        self.usage.number()
    }

    /// What tasks of the process's own group wanted back (version 2), by the last reading.
    pub fn refaults(&self) -> Option<Refaults> {
        self.refaults
    }

    /// Microseconds in which tasks of the group stalled on memory (version 2), ever.
    pub fn stall_us(&mut self) -> Option<u64> {
        match self.version {
            Version::V1 => None,
            Version::V2 => pressure_some_total_us(self.pressure.text()?),
        }
    }
}

/// A file's limit, if it is one. Nothing can be charged below a limit of zero, and yet this process
/// has memory: as a `memory.max` it lies, as a `memory.high` it has the kernel reclaim all it can,
/// which says nothing of how much there is.
fn believable(limit_bytes: Option<u64>) -> Option<u64> {
    limit_bytes.filter(|&limit| limit > 0 && limit < NO_LIMIT)
}

/// Inactive file pages go first and cost nothing. Of the active ones half is left alone: they hold,
/// among others, the text of running programs, and a machine that drops those thrashes.
fn file_cache(stat: &str, inactive: &str, active: &str) -> u64 {
    field(stat, inactive).unwrap_or(0) + field(stat, active).unwrap_or(0) / 2
}

/// Before Linux 5.9 only pages of files were counted, under a name without a kind.
fn refaults(stat: &str) -> Option<Refaults> {
    let file_pages =
        field(stat, "workingset_refault_file").or_else(|| field(stat, "workingset_refault"))?;
    let anon_pages = field(stat, "workingset_refault_anon").unwrap_or(0);
    Some(Refaults { anon_pages, file_pages })
}

struct Mount<'a> {
    root: Cow<'a, str>,
    point: Cow<'a, str>,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    /// One line of mountinfo: `36 35 98:0 /root /point rw - type source options`, with optional
    /// fields before the dash.
    fn parse(line: &'a str) -> Option<Mount<'a>> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, point) = (unescaped(before.next()?), unescaped(before.next()?));
        let mut after = after.split(' ');
        let (kind, _, options) = (after.next()?, after.next()?, after.next()?);
        Some(Mount { root, point, kind, options })
    }

    /// From `group` up to the mount point, if the group is there.
    fn hierarchy(&self, root: &Root, version: Version, group: &str) -> Option<Hierarchy> {
        let (group, point) = (path_of(group), path_of(&self.point));
        let below = group.strip_prefix(path_of(&self.root)).ok()?;
        // The names of the groups between a namespace's root and the place where a path leaves it
        // are unknown.
        if below.components().any(|part| part == Component::ParentDir) {
            return None;
        }
        let own = if below.as_os_str().is_empty() { point.clone() } else { point.join(below) };
        let found = root.path(&own).is_dir();
        let levels = || own.ancestors().take_while(|d| d.starts_with(&point));
        found.then(|| Hierarchy { version, directories: levels().map(Path::to_owned).collect() })
    }

    /// The way down to `group`, if that may be below the mount point and its names are not known.
    fn levels_to(&self, root: &Root, version: Version, group: &str) -> Option<Levels> {
        let is_up = |part: &Component<'_>| *part == Component::ParentDir;
        let (group_path, above) = (path_of(group), path_of(&self.root));
        let names = |path: &Path| -> PathBuf {
            path.components().filter(|part| *part != Component::RootDir).collect()
        };
        let (names_of_group, above) = (names(&group_path), names(&above));
        let ups = |path: &Path| path.components().take_while(is_up).count();
        let (group_ups, mount_ups) = (ups(&names_of_group), ups(&above));
        let known = names_of_group.components().skip(group_ups).collect();
        if mount_ups == above.components().count() && mount_ups > group_ups {
            return Some(Levels { unknown: Some(mount_ups - group_ups), known });
        }
        // The group that has this name is another's.
        self.hierarchy(root, version, group)?;
        let below = group_path.strip_prefix(path_of(&self.root)).ok()?;
        Some(Levels { unknown: None, known: below.to_owned() })
    }

    /// The mount point alone.
    fn whole(&self, version: Version) -> Hierarchy {
        Hierarchy { version, directories: vec![path_of(&self.point)] }
    }
}

/// A path as it is. Mountinfo writes space, tab, newline and backslash as a backslash and three
/// octal digits; `/proc/<pid>/cgroup` doesn't, and the names of systemd's slices and scopes have
/// backslashes.
fn unescaped(path: &str) -> Cow<'_, str> {
    if !path.contains('\\') {
        return Cow::Borrowed(path);
    }
    let mut plain = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('\\') {
        plain.push_str(before);
        let code = after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code.filter(u8::is_ascii) {
            Some(code) => {
                plain.push(char::from(code));
                rest = &after[3..];
            }
            None => {
                plain.push('\\');
                rest = after;
            }
        }
    }
    plain.push_str(rest);
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(base: &Path, file: &str, text: &str) {
        let path = base.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_mount_whose_name_is_no_text_hides_no_limit() {
        let dir = tempfile::tempdir().unwrap();
        let group = "sys/fs/cgroup/db";
        write(dir.path(), "proc/self/cgroup", "0::/db\n");
        write(dir.path(), &format!("{group}/memory.current"), "1\n");
        let mounts = b"36 25 8:1 / /mnt/gr\xf6\xdfe rw - ext4 /dev/sdb1 rw\n\
            38 31 0:41 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        fs::write(dir.path().join("proc/self/mountinfo"), mounts).unwrap();
        let found = find(&Root::new(dir.path()), Path::new(OWN)).unwrap().unwrap();
        assert_eq!(found.directories[0], Path::new("/").join(group));
    }

    #[test]
    fn a_group_whose_name_is_no_text_is_found_with_its_limits() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        for (name, escaped) in [
            (&b"gr\xf6\xdfe"[..], &b"gr\xf6\xdfe"[..]),
            ("gr\u{f6}\u{df}e \\".as_bytes(), "gr\u{f6}\u{df}e\\040\\134".as_bytes()),
        ] {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), "proc/self/mountinfo", "");
            let mounts =
                [&b"30 23 0:26 / /cg/"[..], escaped, b" rw - cgroup2 cgroup2 rw\n"].concat();
            fs::write(dir.path().join("proc/self/mountinfo"), mounts).unwrap();
            fs::write(dir.path().join("proc/self/cgroup"), [b"0::/", name, b"/db\n"].concat())
                .unwrap();
            let point = Path::new("cg").join(OsStr::from_bytes(name));
            let group = point.join(OsStr::from_bytes(name));
            fs::create_dir_all(dir.path().join(&group).join("db")).unwrap();
            fs::write(dir.path().join(&group).join("db/memory.current"), "5").unwrap();
            let found = find(&Root::new(dir.path()), Path::new(OWN)).unwrap().unwrap();
            let above = [group.join("db"), group, point];
            assert_eq!(found.directories, above.map(|group| Path::new("/").join(group)));
        }
    }

    #[test]
    fn a_version_1_limit_on_a_grandparent_is_found() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            "proc/self/cgroup",
            "9:name=systemd:/\n4:cpu:/x\n3:memory:/tenant/app/db\n0::/\n",
        );
        write(
            dir.path(),
            "proc/self/mountinfo",
            "38 31 0:41 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
        );
        let base = "sys/fs/cgroup/memory";
        for (group, limit) in [
            ("", NO_LIMIT * 4),
            ("/tenant", 1 << 30),
            ("/tenant/app", NO_LIMIT * 4),
            ("/tenant/app/db", NO_LIMIT * 4),
        ] {
            write(
                dir.path(),
                &format!("{base}{group}/memory.limit_in_bytes"),
                &format!("{limit}\n"),
            );
            write(dir.path(), &format!("{base}{group}/memory.usage_in_bytes"), "300\n");
            write(
                dir.path(),
                &format!("{base}{group}/memory.stat"),
                "total_inactive_file 100\ntotal_active_file 40\n",
            );
        }
        let root = Root::new(dir.path());
        let found = find(&root, Path::new("/proc/self")).unwrap().unwrap();
        assert_eq!(found.version, Version::V1);
        assert_eq!(found.directories.len(), 4);
        let levels: Vec<_> = found
            .directories
            .iter()
            .map(|d| LevelFiles::new(&root, found.version, d).read().unwrap())
            .collect();
        assert_eq!(levels.iter().filter(|l| l.limit_bytes.is_some()).count(), 1);
        assert_eq!(levels[2].room_bytes(), Some((1 << 30) - 300 + 120));
    }

    #[test]
    fn version_2_takes_the_tighter_of_max_and_high() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "proc/self/cgroup", "0::/pod/db\n");
        write(
            dir.path(),
            "proc/self/mountinfo",
            "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n",
        );
        write(dir.path(), "sys/fs/cgroup/cgroup.procs", "");
        for (group, max, high) in [("pod", "max", "max"), ("pod/db", "2000", "1500")] {
            write(dir.path(), &format!("sys/fs/cgroup/{group}/memory.max"), max);
            write(dir.path(), &format!("sys/fs/cgroup/{group}/memory.high"), high);
            write(dir.path(), &format!("sys/fs/cgroup/{group}/memory.current"), "700");
            write(
                dir.path(),
                &format!("sys/fs/cgroup/{group}/memory.events"),
                "low 0\nhigh 3\nmax 4\noom 0\n",
            );
        }
        let root = Root::new(dir.path());
        let found = find(&root, Path::new("/proc/self")).unwrap().unwrap();
        assert_eq!(found.version, Version::V2);
        let own = LevelFiles::new(&root, found.version, &found.directories[0]).read().unwrap();
        assert_eq!((own.limit_bytes, own.usage_bytes, own.limit_hits), (Some(1500), 700, 7));
        let parent = LevelFiles::new(&root, found.version, &found.directories[1]).read().unwrap();
        assert_eq!(parent.limit_bytes, None);
        // The version 2 root has no usage file: it says nothing, and that is no error.
        assert_eq!(LevelFiles::new(&root, found.version, &found.directories[2]).read(), None);
    }

    #[test]
    fn a_limit_of_zero_does_not_hide_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::new(dir.path());
        let limit = |max: &str, high: &str| {
            write(dir.path(), "db/memory.current", "700");
            write(dir.path(), "db/memory.max", max);
            write(dir.path(), "db/memory.high", high);
            LevelFiles::new(&root, Version::V2, Path::new("/db")).read().unwrap().limit_bytes
        };
        assert_eq!(limit("2000\n", "0\n"), Some(2000));
        assert_eq!(limit("0\n", "1500\n"), Some(1500));
        assert_eq!(limit("max\n", "0\n"), None);
        assert_eq!(limit("max\n", "1500\n"), Some(1500));
    }

    #[test]
    fn a_path_above_the_namespace_means_the_mount_point() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "proc/self/cgroup", "0::/../../pod\n");
        write(
            dir.path(),
            "proc/self/mountinfo",
            "30 23 0:26 /../.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        );
        write(dir.path(), "sys/fs/cgroup/memory.current", "700");
        write(dir.path(), "sys/fs/cgroup/memory.max", "1000");
        let root = Root::new(dir.path());
        let found = find(&root, Path::new("/proc/self")).unwrap().unwrap();
        assert_eq!(found.directories, [PathBuf::from("/sys/fs/cgroup")]);
        assert_eq!(
            LevelFiles::new(&root, found.version, &found.directories[0])
                .read()
                .unwrap()
                .room_bytes(),
            Some(300)
        );
    }

    #[test]
    fn a_limit_below_a_mount_whose_root_has_a_backslash_in_its_name_is_found() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "proc/self/cgroup", "0::/machine-db\\x2d1.scope/db.service\n");
        write(
            dir.path(),
            "proc/self/mountinfo",
            "30 23 0:26 /machine-db\\134x2d1.scope /cg rw - cgroup2 cgroup2 rw\n",
        );
        write(dir.path(), "cg/memory.current", "5");
        write(dir.path(), "cg/db.service/memory.current", "5");
        let found = find(&Root::new(dir.path()), Path::new(OWN)).unwrap().unwrap();
        assert_eq!(found.directories, [Path::new("/cg/db.service"), Path::new("/cg")]);
    }

    /// A container with a private cgroup namespace into which all of the machine's hierarchy is
    /// mounted, as Docker does for `-v /sys/fs/cgroup:/sys/fs/cgroup`.
    fn in_a_container_that_sees_the_machine(
        version: Version,
        group: &str,
        above: &str,
    ) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let (controllers, kind, options) = match version {
            Version::V1 => ("4:memory", "cgroup", "rw,memory"),
            Version::V2 => ("0:", "cgroup2", "rw"),
        };
        write(dir.path(), "proc/self/cgroup", &format!("{controllers}:{group}\n"));
        let mounts = format!("30 23 0:26 {above} /cg rw - {kind} {kind} {options}\n");
        write(dir.path(), "proc/self/mountinfo", &mounts);
        let mut others = 1..;
        for other in ["", "/init.scope", "/docker", "/docker/1f", "/docker/2e", "/docker/2e/x"] {
            let pid = others.next().unwrap();
            let pid = if pid == std::process::id() { 0 } else { pid };
            write(dir.path(), &format!("cg{other}/cgroup.procs"), &format!("{pid}\n"));
            write(dir.path(), &format!("cg{other}/memory.current"), "5");
        }
        dir
    }

    #[test]
    fn a_group_below_names_that_a_namespace_hides_is_found_by_its_members() {
        let own = format!("7\n{}\n", std::process::id());
        for (group, above, place) in [
            ("/", "/../..", "/docker/2e"),
            // The server is in a group below the container's.
            ("/x", "/../..", "/docker/2e/x"),
            // It has been moved out of the container's.
            ("/../1f", "/../..", "/docker/1f"),
            // No kernel says that nothing is above, but a runtime that imitates one may.
            ("/", "/", "/docker/2e/x"),
            ("/docker", "/", "/docker"),
        ] {
            for (version, members) in [
                (Version::V2, "cgroup.procs"),
                (Version::V1, "cgroup.procs"),
                (Version::V1, "tasks"),
            ] {
                let dir = in_a_container_that_sees_the_machine(version, group, above);
                if members == "tasks" {
                    std::fs::remove_file(dir.path().join(format!("cg{place}/cgroup.procs")))
                        .unwrap();
                }
                write(dir.path(), &format!("cg{place}/{members}"), &own);
                let mut finder = Finder::default();
                let root = Root::new(dir.path());
                let mut found = || finder.find(&root, Path::new(OWN)).unwrap().unwrap();
                let first = found();
                assert_eq!(first.version, version);
                assert_eq!(first.directories[0], Path::new("/cg").join(&place[1..]), "{group}");
                assert_eq!(first.directories.last().unwrap(), Path::new("/cg"));
                assert_eq!(found(), first);
                assert_eq!(finder.doubt(), None);
            }
        }
    }

    #[test]
    fn a_group_that_is_not_found_is_searched_for_when_the_process_has_moved() {
        let dir = in_a_container_that_sees_the_machine(Version::V2, "/", "/../..");
        let root = Root::new(dir.path());
        let mut finder = Finder::default();
        let find = |finder: &mut Finder| finder.find(&root, Path::new(OWN)).unwrap().unwrap();
        assert_eq!(find(&mut finder).directories, [Path::new("/cg")]);
        let doubt = finder.doubt().unwrap().to_owned();
        assert!(doubt.starts_with("the process's memory cgroup / is not found below /cg"));
        // Not at every look.
        write(dir.path(), "cg/docker/2e/cgroup.procs", &std::process::id().to_string());
        assert_eq!(find(&mut finder).directories, [Path::new("/cg")]);
        assert_eq!(finder.doubt(), Some(&*doubt));
        write(dir.path(), "proc/self/cgroup", "0::/../2e\n");
        assert_eq!(find(&mut finder).directories[0], Path::new("/cg/docker/2e"));
        assert_eq!(finder.doubt(), None);
        // Nor without end.
        let levels = Levels { unknown: Some(2), known: PathBuf::new() };
        let process = Process { is_own: true, id: std::process::id() };
        for no in 0..SEARCHED_MAX + 10 {
            std::fs::create_dir(dir.path().join(format!("cg/{no}"))).unwrap();
        }
        assert_eq!(search(&root, Version::V2, Path::new("/cg"), &levels, process).unwrap(), None);
    }

    #[test]
    fn another_process_beside_this_one_in_such_a_container_is_found() {
        let dir = in_a_container_that_sees_the_machine(Version::V2, "/", "/../..");
        write(dir.path(), "proc/4711/cgroup", "0::/\n");
        assert_eq!(of_another(dir.path()).unwrap_err().kind(), io::ErrorKind::Unsupported);
        write(dir.path(), "cg/docker/1f/cgroup.procs", "12\n4711\n");
        let found = of_another(dir.path()).unwrap().unwrap();
        assert_eq!(found.directories[0], Path::new("/cg/docker/1f"));
    }

    #[test]
    fn what_mountinfo_escapes_is_undone_and_nothing_else() {
        for (written, plain) in [
            ("/a/b", "/a/b"),
            ("/a\\040b\\011\\012", "/a b\t\n"),
            ("\\134x2d\\134", "\\x2d\\"),
            ("/a\\", "/a\\"),
            ("/a\\13", "/a\\13"),
            ("/a\\x2d\\777\u{e4}", "/a\\x2d\\777\u{e4}"),
        ] {
            assert_eq!(unescaped(written), plain);
        }
    }

    #[test]
    fn no_controller_is_no_hierarchy() {
        let dir = tempfile::tempdir().unwrap();
        let found = || find(&Root::new(dir.path()), Path::new("/proc/self"));
        assert_eq!(found().unwrap_err().kind(), io::ErrorKind::NotFound);
        write(dir.path(), "proc/self/cgroup", "0::/\n");
        write(
            dir.path(),
            "proc/self/mountinfo",
            "garbage\n30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        );
        assert_eq!(found().unwrap(), None);
    }

    /// A machine with a container's process 4711 in it, as a process outside of the container sees
    /// it.
    fn beside_a_container(mounts: &str, groups: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "proc/self/mountinfo", mounts);
        write(dir.path(), "proc/4711/cgroup", groups);
        dir
    }

    const MEMORY: &str = "35 31 0:32 / /cg/memory rw - cgroup cgroup rw,memory\n";
    const UNIFIED: &str = "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n";

    fn of_another(dir: &Path) -> io::Result<Option<Hierarchy>> {
        find(&Root::new(dir), Path::new("/proc/4711"))
    }

    #[test]
    fn a_containers_group_is_found_from_outside_by_the_mounts_of_the_outside() {
        // The containers' runtime mounts the group itself where the outside has all of the
        // hierarchy.
        for (mounts, inside, groups, base, usage) in [
            (
                MEMORY,
                "99 90 0:32 /docker/1f /cg/memory ro - cgroup cgroup rw,memory\n",
                "4:memory:/docker/1f\n0::/\n",
                "cg/memory",
                "memory.usage_in_bytes",
            ),
            (
                UNIFIED,
                "99 90 0:26 /docker/1f /cg ro - cgroup2 cgroup2 rw\n",
                "0::/docker/1f\n",
                "cg",
                "memory.current",
            ),
        ] {
            let dir = beside_a_container(mounts, groups);
            write(dir.path(), "proc/4711/mountinfo", inside);
            write(dir.path(), &format!("{base}/docker/1f/{usage}"), "5");
            let found = of_another(dir.path()).unwrap().unwrap();
            let own = Path::new("/").join(base).join("docker/1f");
            assert_eq!(found.directories.len(), 3);
            assert_eq!(found.directories[0], own);
            // As the process in there sees itself: its mount is all there is.
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), "proc/self/mountinfo", inside);
            write(dir.path(), "proc/self/cgroup", groups);
            write(dir.path(), &format!("{base}/{usage}"), "5");
            let found = find(&Root::new(dir.path()), Path::new(OWN)).unwrap().unwrap();
            assert_eq!(found.directories, [Path::new("/").join(base)]);
        }
    }

    #[test]
    fn a_group_out_of_sight_is_not_taken_for_the_mount_point() {
        let hidden = |mounts: &str, groups: &str| {
            let dir = beside_a_container(mounts, groups);
            write(dir.path(), "cg/memory.current", "5");
            write(dir.path(), "cg/memory/memory.usage_in_bytes", "5");
            of_another(dir.path()).unwrap_err()
        };
        for (mounts, groups) in [
            // The reader is in a cgroup namespace that the other is not in.
            (MEMORY, "4:memory:/../db\n"),
            (UNIFIED, "0::/../db\n"),
            // Its directory is not there.
            (MEMORY, "4:memory:/db\n"),
            // Another part of the hierarchy is mounted, though its name begins alike.
            ("30 23 0:26 /d /cg rw - cgroup2 cgroup2 rw\n", "0::/db\n"),
            // The controller is not mounted.
            ("", "4:memory:/db\n"),
            (UNIFIED, "4:memory:/db\n0::/\n"),
            ("", "0::/db\n"),
        ] {
            let error = hidden(mounts, groups);
            assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{mounts}{groups}");
            assert!(error.to_string().contains("db"), "{error}");
        }
    }

    #[test]
    fn another_mount_of_the_same_hierarchy_may_show_the_group() {
        let part = "29 23 0:26 /other /part rw - cgroup2 cgroup2 rw\n";
        let dir = beside_a_container(&format!("{part}{UNIFIED}"), "0::/docker/1f\n");
        write(dir.path(), "part/memory.current", "5");
        write(dir.path(), "cg/docker/1f/memory.current", "5");
        let found = of_another(dir.path()).unwrap().unwrap();
        assert_eq!(found.directories[0], Path::new("/cg/docker/1f"));
    }

    #[test]
    fn a_mount_from_above_the_namespace_shows_what_is_beside_it() {
        let above = "30 23 0:26 /.. /cg rw - cgroup2 cgroup2 rw\n";
        let dir = beside_a_container(above, "0::/../db\n");
        write(dir.path(), "cg/db/memory.current", "5");
        let found = of_another(dir.path()).unwrap().unwrap();
        assert_eq!(found.directories, [Path::new("/cg/db"), Path::new("/cg")]);
    }
}
