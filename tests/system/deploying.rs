//! The files of `deploy/`: they name metrics that exist, pipelines that load, and this version.
//! systemd verifies its units and those of `docs/operations.md`, if it is installed.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hushflow::pipeline::Pipeline;

use crate::brokers::skipped;
use crate::harness::{Lab, answer, await_until, finish, hushflow, run, send, served};
use crate::servers::{Client, free_port, installed};

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name)
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names of metrics in a text: words that begin with `hushflow_` and a lower-case letter.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_metric = |word: &&str| {
        let rest = word.strip_prefix("hushflow_");
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase()))
    };
    words.filter(is_metric).map(String::from).collect()
}

#[test]
fn dashboards_alerts_and_the_manual_name_the_metrics_of_a_run() {
    let lab = Lab::new();
    let pipeline = "name = 'p'\nsource = { path = '-', format = 'csv' }\ncolumns = [{ name = 'x', lower = 0, upper = 1 }]
privacy = { epsilon = 1, delta = 1e-6, neighbours = 'replace-one-in-place' }\nrelease.strategy = 'square-root'
epochs = { time = 't', start = '2020-01-01', length = '10s', horizon = 9, clock = 'event-time' }\n";
    let mut command = run(&lab.write("p.toml", pipeline), &lab.path("state"), 1);
    let mut child = command.args(["--metrics", "127.0.0.1:0"]).stdin(Stdio::piped()).spawn().unwrap();
    let (address, _rest) = served(&mut child);
    child.stdin.as_ref().unwrap().write_all(b"t,x\n2020-01-01T00:00:01Z,0.125\n").unwrap();
    let scrape = || answer(send(&address, &format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n"))).1;
    await_until("it has begun", || scrape().contains("hushflow_generation"));
    let exported = named(&scrape());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(exported.len() > 12, "{exported:?}");
    for name in ["grafana/dashboard.json", "prometheus/alerts.yml", "../docs/operations.md"] {
        let unknown: Vec<_> = named(&text(&deploy(name))).difference(&exported).cloned().collect();
        assert!(unknown.is_empty(), "{name} names metrics that no run exports: {unknown:?}");
    }
    let dashboard = text(&deploy("grafana/dashboard.json"));
    serde_json::from_str::<serde_json::Value>(&dashboard).expect("JSON");
    let stem = |name: &String| ["_sum", "_count"].iter().all(|end| !name.ends_with(end));
    let shown = named(&dashboard);
    let hidden: Vec<_> = exported.iter().filter(|name| stem(name) && !shown.contains(*name)).collect();
    assert_eq!(hidden, ["hushflow_commit_seconds"], "its buckets are shown");
}

#[test]
fn the_demonstration_writes_what_its_pipeline_reads() {
    let lab = Lab::new();
    let spool = lab.path("spool");
    let mut source = Command::new("sh");
    source.arg(deploy("compose/source.sh")).arg(&spool).arg("1");
    assert!(source.status().unwrap().success());
    let written = text(&spool.join("orders.toml"));
    let pipeline = written.replace("/spool", spool.to_str().unwrap());
    let pipeline = lab.write("orders.toml", pipeline);
    let checked = finish(hushflow(["check", "--json"]).arg(&pipeline));
    let report = &checked.succeeded().json()[0];
    assert_eq!(report["rows"], 20, "{report}");
    assert_eq!(report["problems"].as_array().map(Vec::len), Some(0), "{report}");
    // The variant with a sink whose password is secret, in a new directory and after the plain one.
    for spool in [lab.path("variant"), spool.clone()] {
        let mut with_sink = Command::new("sh");
        with_sink.arg(deploy("compose/source.sh")).arg(&spool).arg("1").env("SINKS", "redis");
        assert!(with_sink.status().unwrap().success());
        let pipeline = Pipeline::load(&spool.join("orders.toml")).expect("a pipeline");
        assert_eq!(pipeline.sinks.len(), 1);
    }
    // Another start of the plain variant writes the same file as at first, without a sink.
    assert!(source.status().unwrap().success());
    assert_eq!(text(&spool.join("orders.toml")), written);
}

/// The Redis of the demonstration asks for exactly the password in the file.
#[test]
fn the_demonstration_takes_any_password() {
    let Some(program) = installed("redis-server") else { return skipped("redis-server") };
    let lab = Lab::new();
    let compose = text(&deploy("compose/secrets.yaml"));
    let script = compose.split_once("      - |\n").expect("a script").1;
    let script: Vec<&str> = script.lines().map_while(|line| line.strip_prefix("        ")).collect();
    assert_eq!(script.len(), 5, "{script:?}");
    let port = free_port();
    let file = lab.path("redis.password");
    let script = script.join("\n").replace("$$", "$");
    let script = script.replace("/run/secrets/redis_password", file.to_str().unwrap());
    let script = script.replace("dir /data", &format!("port {port}\nbind 127.0.0.1\ndir /tmp"));
    let script = script.replace("redis-server", program.to_str().unwrap());
    let password = r#" it's "50 %" of \n $HOME & #1"#;
    std::fs::write(&file, format!("{password}\n")).unwrap();
    let mut redis = Command::new("sh").args(["-c", &script]).stdout(Stdio::null()).spawn().unwrap();
    await_until("Redis listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    let answer = Client::new(port).redis(&["AUTH", password]);
    redis.kill().unwrap();
    redis.wait().unwrap();
    assert_eq!(answer, "+OK");
}

#[test]
fn manifests_name_this_version() {
    Pipeline::load(&deploy("kubernetes/pipeline.toml")).expect("a pipeline");
    let version = env!("CARGO_PKG_VERSION");
    for name in ["run.yaml", "page.yaml"] {
        let image = format!("image: ghcr.io/hushflow/hushflow:{version}\n");
        assert!(text(&deploy("kubernetes").join(name)).contains(&image), "{name}");
    }
    let changelog = format!("hushflow ({version}-");
    assert!(text(&deploy("debian/changelog")).starts_with(&changelog));
}

const RUN: &str = include_str!("../../deploy/debian/hushflow@.service");
const PAGE: &str = include_str!("../../deploy/debian/hushflow-page@.service");

/// The units in a page of the documents: name and text. Each begins with a comment that gives its
/// path.
fn units(page: &str) -> Vec<(&str, &str)> {
    let blocks = page.split("```ini\n").skip(1).filter_map(|rest| rest.split("```").next());
    let named = blocks.filter_map(|text| {
        let name = text.lines().next()?.strip_prefix("# /etc/systemd/system/")?;
        Some((name.split([' ', ',']).next()?, text))
    });
    named.collect()
}

/// Makes the unit verifiable on a machine without the binary, the manual and the user.
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
