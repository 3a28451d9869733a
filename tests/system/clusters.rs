//! Processes on separate machines: in network namespaces connected by a bridge, killed, and
//! restarted in other numbers. The exact sums must equal those of one process.

use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use hushflow::state::ReleaseFrame;

use crate::harness::{Lab, Stream, await_until, expected_sums, finish, hushflow, releases, run, sums, wait};

/// Network namespaces of this test, each with an address in a separate network; removed on drop.
struct Machines {
    prefix: String,
    number: usize,
}

impl Machines {
    /// Makes `number` machines; `None` if this test may not make them.
    fn new(number: usize) -> Option<Self> {
        let machines = Machines { prefix: format!("hushflow-{}-{number}", std::process::id()), number };
        let hub = machines.name(number);
        let made = ip(&["netns", "add", &hub])
            && ip(&["-n", &hub, "link", "add", "hub", "type", "bridge"])
            && ip(&["-n", &hub, "link", "set", "hub", "up"])
            && (0..number).all(|machine| machines.connect(machine, &hub));
        if !made {
            let _ = writeln!(stderr(), "skipped: network namespaces take root and the command ip");
        }
        made.then_some(machines)
    }

    fn name(&self, machine: usize) -> String {
        format!("{}-{machine}", self.prefix)
    }

    fn connect(&self, machine: usize, hub: &str) -> bool {
        let (name, port) = (self.name(machine), format!("port{machine}"));
        let address = format!("10.83.0.{}/24", machine + 1);
        ip(&["netns", "add", &name])
            && ip(&[
                "link", "add", "eth0", "netns", &name, "type", "veth", "peer", "name", &port, "netns", hub,
            ])
            && ip(&["-n", hub, "link", "set", &port, "master", "hub", "up"])
            && ip(&["-n", &name, "address", "add", &address, "dev", "eth0"])
            && ip(&["-n", &name, "link", "set", "eth0", "up"])
    }

    /// Starts a run with one process on each of the first `processes` machines.
    fn start(&self, processes: usize, pipeline: &Path, state: &Path) -> Vec<Child> {
        let hosts: Vec<_> = (1..=processes).map(|machine| format!("10.83.0.{machine}:2101")).collect();
        let start = |process: usize| {
            let run = run(pipeline, state, 1);
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &self.name(process)]).arg(run.get_program()).args(run.get_args());
            command.args(["--hosts", &hosts.join(","), "--process", &process.to_string()]);
            command.arg("--key").arg(pipeline.with_file_name("cluster.key"));
            let pipes = hushflow([""; 0]);
            command.envs(pipes.get_envs().filter_map(|(name, value)| Some((name, value?))));
            command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
            command.stderr(std::process::Stdio::piped()).spawn().expect("the process starts")
        };
        (0..processes).map(start).collect()
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        (0..=self.number).for_each(|machine| {
            ip(&["netns", "delete", &self.name(machine)]);
        });
    }
}

impl Machines {
    /// Disconnects a machine from the network without closing connections.
    fn unplug(&self, machine: usize) {
        let (hub, port) = (self.name(self.number), format!("port{machine}"));
        assert!(ip(&["-n", &hub, "link", "set", &port, "down"]), "the cable is there");
    }
}

/// Runs `ip`; returns whether it succeeded.
fn ip(arguments: &[&str]) -> bool {
    Command::new("ip").args(arguments).output().is_ok_and(|done| done.status.success())
}

/// Writes a stream of 800 epochs, its pipeline and a cluster key. Returns the first two.
fn prepared(lab: &Lab) -> (Stream, PathBuf) {
    let stream = Stream { rows: 32_000, epochs: 800 };
    lab.write("data.csv", stream.csv());
    let pipeline = lab.write("pipeline.toml", stream.pipeline("data.csv", ""));
    finish(hushflow(["key"]).arg(lab.path("cluster.key"))).succeeded();
    (stream, pipeline)
}

#[test]
fn killed_processes_across_machines_resume_in_other_numbers() {
    let Some(machines) = Machines::new(4) else { return };
    let lab = Lab::new();
    let (stream, pipeline) = prepared(&lab);
    let state = lab.path("state");
    let mut seen = Vec::new();
    for (generation, (processes, victim)) in (1..).zip([(2, 1), (4, 2), (4, 0)]) {
        let mut children = machines.start(processes, &pipeline, &state);
        // Ignores epochs committed by an earlier run, which a start publishes before the processes
        // connect.
        let publishes = |release: &ReleaseFrame| release.generation == generation;
        await_until("the cluster publishes", || releases(&state).last().is_some_and(publishes));
        children[victim].kill().expect("a child can be killed");
        for (process, child) in children.into_iter().enumerate() {
            let ended = wait(child);
            if process != victim {
                ended.failed(1, &["another process of the cluster has ended"]);
            }
        }
        let now = releases(&state);
        assert!(now.starts_with(&seen), "an epoch that had been published is another now");
        assert!(now.len() < stream.epochs as usize, "the run was killed half-way");
        seen = now;
    }
    machines.start(3, &pipeline, &state).into_iter().for_each(|child| {
        wait(child).succeeded();
    });
    let all = releases(&state);
    assert!(all.starts_with(&seen));
    assert_eq!(all.len(), stream.epochs as usize);
    assert!(sums(&state) == expected_sums(&pipeline), "as computed row by row");
    let alone = lab.path("alone");
    finish(&mut run(&pipeline, &alone, 1)).succeeded();
    assert!(sums(&alone) == sums(&state), "as one process has them");
}

#[test]
#[ignore = "slow"]
fn a_machine_that_vanishes_ends_the_others() {
    let Some(machines) = Machines::new(3) else { return };
    let lab = Lab::new();
    let (stream, pipeline) = prepared(&lab);
    let state = lab.path("state");
    let children = machines.start(3, &pipeline, &state);
    await_until("the cluster publishes", || !releases(&state).is_empty());
    machines.unplug(2);
    // All processes detect the cut although no connection was closed.
    for child in children {
        wait(child).failed(1, &["another process of the cluster has ended"]);
    }
    assert!(releases(&state).len() < stream.epochs as usize, "the machine vanished half-way");
}
