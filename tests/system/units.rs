//! The systemd units of `docs/operations.md`, verified by systemd. If it is not installed, the test
//! prints a message.

use std::fs;
use std::io::{Write, stderr};
use std::process::Command;

/// The units in the page: name and text. Each begins with a comment that gives its path.
fn units(page: &str) -> Vec<(&str, String)> {
    let blocks = page.split("```ini\n").skip(1).filter_map(|rest| rest.split("```").next());
    let named = blocks.filter_map(|text| {
        let place = text.lines().next()?.strip_prefix("# /etc/systemd/system/")?;
        Some((place.split([' ', ',']).next()?, text))
    });
    // Verifies the unit, not whether this machine has the binary and the user.
    let for_this_machine = |text: &str| {
        text.replace("ExecStart=hushflow", "ExecStart=/bin/true").replace("User=hushflow", "User=root")
    };
    named.map(|(name, text)| (name, for_this_machine(text))).collect()
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
fn systemd_accepts_the_units_of_the_documents() {
    let page = include_str!("../../docs/operations.md");
    let units = units(page);
    assert_eq!(
        units.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        ["hushflow.service", "hushflow-page.service", "hushflow@.service"]
    );
    // Network-facing services do not run as the owner of exact sums.
    let page = &units[1].1;
    assert!(
        page.contains("DynamicUser=true") && page.contains("InaccessiblePaths=-/var/lib/hushflow"),
        "{page}"
    );
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        let _ = writeln!(stderr(), "skipped: systemd-analyze is not installed");
        return;
    }
    for (name, text) in &units {
        assert_eq!(complaints(name, text), "", "{name}");
        let misspelt = text.replacen("[Service]\n", "[Service]\nRestartt=always\n", 1);
        assert_ne!(complaints(name, &misspelt), "", "{name}: a mistake is found");
    }
}
