//! The systemd units of the package and of `docs/operations.md`, verified by systemd. If it is not
//! installed, the test prints a message.

use std::fs;
use std::io::{Write, stderr};
use std::process::Command;

const RUN: &str = include_str!("../../deploy/debian/hushflow@.service");
const PAGE: &str = include_str!("../../deploy/debian/hushflow-page@.service");

/// The units in a page of the documents: name and text. Each begins with a comment that gives its
/// path.
fn units(page: &str) -> Vec<(&str, &str)> {
    let blocks = page.split("```ini\n").skip(1).filter_map(|rest| rest.split("```").next());
    let named = blocks.filter_map(|text| {
        let place = text.lines().next()?.strip_prefix("# /etc/systemd/system/")?;
        Some((place.split([' ', ',']).next()?, text))
    });
    named.collect()
}

/// Verifies the unit, not whether this machine has the binary, the manual and the user.
fn for_this_machine(text: &str) -> String {
    let text = text.replace("ExecStart=/usr/bin/hushflow", "ExecStart=hushflow");
    let text = text.replace("ExecStart=hushflow", "ExecStart=/bin/true");
    let text = text.replace("User=hushflow", "User=root").replace("Group=hushflow", "Group=root");
    text.lines().filter(|line| !line.starts_with("Documentation=")).map(|line| format!("{line}\n")).collect()
}

fn complaints(name: &str, text: &str) -> String {
    let directory = tempfile::tempdir().expect("a temporary directory");
    // A template is verified through an instance.
    let path = directory.path().join(name.replace("@.", "@0."));
    fs::write(&path, text).expect("a unit is written");
    let verified =
        Command::new("systemd-analyze").arg("verify").arg(&path).output().expect("systemd-analyze starts");
    let complaints_text = String::from_utf8_lossy(&verified.stderr);
    // Ignore messages about other units of the machine.
    complaints_text.lines().filter(|line| line.contains(&name.replace("@.", "@0."))).collect()
}

#[test]
fn systemd_accepts_the_units() {
    let documented = units(include_str!("../../docs/operations.md"));
    assert_eq!(documented.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["hushflow-cluster@.service"]);
    // Network-facing services do not run as the owner of exact sums.
    assert!(
        PAGE.contains("DynamicUser=yes") && PAGE.contains("InaccessiblePaths=-/var/lib/hushflow"),
        "{PAGE}"
    );
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        let _ = writeln!(stderr(), "skipped: systemd-analyze is not installed");
        return;
    }
    for (name, text) in
        [("hushflow@.service", RUN), ("hushflow-page@.service", PAGE)].into_iter().chain(documented)
    {
        let text = for_this_machine(text);
        assert_eq!(complaints(name, &text), "", "{name}");
        let misspelt = text.replacen("[Service]\n", "[Service]\nRestartt=always\n", 1);
        assert_ne!(complaints(name, &misspelt), "", "{name}: a mistake is found");
    }
}
