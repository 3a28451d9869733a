//! How many entities the memory of this process holds.
//!
//! Without this limit a run would be killed by the system, in the middle of an epoch and without a
//! word. Limits are those of the process (`ulimit -v`), of its control group (version 2, as in
//! containers), and the memory of the machine.

use std::path::Path;

use rustix::process::{Resource, getrlimit};

/// Bytes for each entity: its history, its place among the recent ones, and its worker's copy of
/// both. A debug build takes up to 235 at the peak.
const ENTITY_BYTES: u64 = 256;

/// Bytes for everything else.
const OTHER_BYTES: u64 = 128 << 20;

/// Returns the number of entities that fit into memory; a bound beyond reach where no limit is
/// known.
pub(super) fn entities_that_fit() -> u64 {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let of_group = group_path(&groups).and_then(|group| {
        let folders = Path::new("/sys/fs/cgroup").join(group);
        let limits = folders.ancestors().filter_map(|folder| read(&folder.join("memory.max")));
        limits.filter_map(|limit| limit.trim().parse().ok()).min()
    });
    let of_machine = read(Path::new("/proc/meminfo")).and_then(|text| machine_bytes(&text));
    let of_process = getrlimit(Resource::As).current;
    entities_in([of_process, of_group, of_machine])
}

fn entities_in(limits: [Option<u64>; 3]) -> u64 {
    let least = limits.into_iter().flatten().min();
    least.map_or(u64::MAX, |bytes| bytes.saturating_sub(OTHER_BYTES) / ENTITY_BYTES)
}

/// The path of the control group of version 2 in `/proc/self/cgroup`, without its slash.
fn group_path(groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| line.strip_prefix("0::/"))
}

/// The memory of the machine in `/proc/meminfo`, in bytes.
fn machine_bytes(text: &str) -> Option<u64> {
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_counts() {
        assert_eq!(entities_in([None; 3]), u64::MAX);
        assert_eq!(entities_in([Some(OTHER_BYTES + 2560), Some(u64::MAX), None]), 10);
        assert_eq!(entities_in([None, Some(1), Some(1 << 40)]), 0);
        assert!(entities_that_fit() > 1000);
    }

    #[test]
    fn limits_are_read_from_the_texts_of_the_system() {
        assert_eq!(group_path("1:name=systemd:/x\n0::/user.slice/a.scope\n"), Some("user.slice/a.scope"));
        assert_eq!(group_path("0::/\n"), Some(""));
        assert_eq!(group_path("12:memory:/docker\n"), None);
        assert_eq!(machine_bytes("MemTotal:       24104348 kB\nMemFree: 1 kB\n"), Some(24_104_348 * 1024));
        assert_eq!(machine_bytes("MemFree: 1 kB\n"), None);
    }
}
