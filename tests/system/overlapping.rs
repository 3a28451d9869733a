//! Windows of several epochs, and entities in windows: their cost, restarts at any time, and errors
//! for options that do not apply.

use std::path::{Path, PathBuf};

use crate::harness::{
    Ended, Lab, answer, await_until, close, finish, hushflow, number, releases, run, run_as_two, send,
    served, tail, wait,
};
use crate::windows::{COVARIANCE, MEAN, WEATHER, lines, weather};
use hushflow::mechanism::noise::NoiseSource;
use hushflow::pipeline::Pipeline;
use hushflow::publication::{WindowAudit, WindowPublication};
use serde_json::Value;

/// Days of an aircraft: an epoch is a week of January 2013, and an aircraft counts in two of them,
/// with two flights in each.
fn aircraft(lab: &Lab, release: &str) -> PathBuf {
    let data = std::path::absolute("examples/data/flights_jan2013.csv").unwrap();
    let text = format!(
        "name = 'aircraft'
source.path = '{}'
[[columns]]
name = 'dep_delay'
lower = -60
upper = 240
[[columns]]
name = 'air_time'
lower = 0
upper = 700
[key]
column = 'origin'
values = ['EWR', 'JFK', 'LGA']
[entity]
column = 'tailnum'
participations = 2
records_per_epoch = 2
[epochs]
time = 'event_time'
clock = 'event-time'
start = '2013-01-01T05:00:00Z'
length = '7d'
horizon = 4
[privacy]
unit = 'entity'
neighbours = 'replace-one-in-place'
epsilon = 8
delta = 1e-6
[release]
{release}
[simulation]
seed = 5
",
        data.display()
    );
    lab.write(&format!("aircraft{}.toml", release.len()), text)
}

const SLIDING: &str = "window = 3\nstride = 1\n";

fn plan(pipeline: &Path, more: &[&str]) -> Value {
    let mut plan = hushflow(["plan".as_ref(), pipeline.as_os_str()]);
    finish(plan.arg("--json").args(more)).succeeded().json().remove(0)
}

fn shown(state: &Path, more: &[&str]) -> Ended {
    finish(&mut tail(state, more))
}

/// Each week but the first two ends a window of three; the records of a window are those of its
/// weeks.
#[test]
fn a_sliding_window_reads_its_epochs_and_costs_its_overlap() {
    let lab = Lab::new();
    let release = format!("{MEAN}window = 4\nstride = 2\n");
    let pipeline = weather(&lab, WEATHER, 30, &release, "");
    let state = lab.path("state");
    finish(&mut run(&pipeline, &state, 2)).succeeded();
    let months = lab.path("months");
    finish(&mut run(&weather(&lab, WEATHER, 30, MEAN, ""), &months, 1)).succeeded();
    let months = lines(&months);
    let rows_of = |key: &Value, epochs: std::ops::RangeInclusive<u64>| -> u64 {
        let own = months.iter().filter(|line| &line["key"] == key);
        own.filter(|line| epochs.contains(&line["epoch"].as_u64().unwrap()))
            .map(|line| line["rows"].as_u64().unwrap())
            .sum()
    };
    let found = lines(&state);
    assert_eq!(found.len(), 6 * 3);
    for line in &found {
        let (first, last) = (line["first_epoch"].as_u64().unwrap(), line["epoch"].as_u64().unwrap());
        assert!(last.is_multiple_of(2) && first == last.saturating_sub(3).max(1), "{line}");
        assert_eq!(line["rows"].as_u64().unwrap(), rows_of(&line["key"], first..=last), "{line}");
        assert!(line["mean"].is_array() && number(&line["spent"]) < 2.0, "{line}");
        // The start of a line is that of its window.
        let of_first = months.iter().find(|line| line["epoch"] == first).unwrap();
        assert_eq!(line["start"], of_first["start"], "{line}");
    }
    let planned = plan(&pipeline, &["--records-per-epoch", "720"]);
    close("μ of all windows", &planned["mu"], 0.453, 0.02);
    assert_eq!((&planned["windows_of_unit"], &planned["windows"]), (&2.into(), &18.into()));
    close("two windows", &planned["noise_factor"], 2f64.sqrt(), 1e-9);
    close("spent", &found[0]["spent"], number(&planned["budget"]["epsilon"]), 0.02);
    // The forecast beside windows without overlap, whose noise is smaller by the root of two.
    let [with, without] =
        [&planned["noise"], &planned["without_overlap"]["noise"]].map(|noise| number(&noise[0]));
    assert!((1.3..1.6).contains(&(with / without)), "{planned}");
    let published = number(&found[17]["noise"][0]);
    assert!((0.5..2.0).contains(&(with / published)), "{with} {published}");
    for word in ["window", "4 epochs, every 2 epochs", "rows that one needs", "mean of temp ±"] {
        let plan =
            finish(hushflow(["plan".as_ref(), pipeline.as_os_str()]).args(["--records-per-epoch", "720"]));
        assert!(plan.succeeded().out.contains(word), "{word}");
    }
    finish(&mut hushflow(["verify".as_ref(), state.as_os_str()])).succeeded();
}

#[test]
fn restarts_workers_and_processes_change_no_window_of_several_epochs() {
    let lab = Lab::new();
    let tukey = "method = 'gaussian'\ncorruption = 0.01\nscale = [40, 100]\n";
    for (pipeline, epochs) in [
        (weather(&lab, WEATHER, 5, &format!("{COVARIANCE}{SLIDING}"), ""), 73),
        (weather(&lab, WEATHER, 5, &format!("{COVARIANCE}window = 'growing'\n"), ""), 73),
        (aircraft(&lab, &format!("{tukey}{SLIDING}")), 4),
    ] {
        let name = pipeline.file_stem().unwrap().to_str().unwrap().to_owned();
        let state = |what: &str| lab.path(&format!("{name}-{what}"));
        let bytes = |what: &str| std::fs::read(state(what).join("public.log")).unwrap();
        finish(&mut run(&pipeline, &state("whole"), 1)).succeeded();
        finish(&mut run(&pipeline, &state("two"), 2)).succeeded();
        assert!(bytes("two") == bytes("whole"), "{name}: two workers");
        let processes =
            run_as_two(&pipeline, &state("cluster"), 1).map(|mut process| process.spawn().unwrap());
        processes.into_iter().for_each(|process| drop(wait(process).succeeded()));
        assert!(bytes("cluster") == bytes("whole"), "{name}: two processes");
        // Killed once some epochs are published, as often as that happens.
        let (mut kills, mut before) = (0, 0);
        loop {
            let mut child = run(&pipeline, &state("killed"), 1 + kills % 2).spawn().unwrap();
            await_until("epochs are published", || {
                releases(&state("killed")).len() > before + epochs / 6 || child.try_wait().unwrap().is_some()
            });
            child.kill().unwrap();
            before = releases(&state("killed")).len();
            if wait(child).code == Some(0) {
                break;
            }
            kills += 1;
        }
        let found = |what: &str| -> Vec<Value> {
            let without = |mut line: Value| {
                line.as_object_mut().unwrap().retain(|field, _| field != "generation" && field != "chain");
                line
            };
            lines(&state(what)).into_iter().map(without).collect()
        };
        assert_eq!(found("killed"), found("whole"), "{name}: {kills} kills");
        finish(&mut hushflow(["verify".as_ref(), state("killed").as_os_str()])).succeeded();
    }
}

/// An aircraft counts with two flights in each of two weeks. The ledger is about aircraft.
#[test]
fn entities_are_protected_in_windows() {
    let lab = Lab::new();
    let release = "method = 'gaussian'\ncorruption = 0.01\nscale = [40, 100]\n";
    let pipeline = aircraft(&lab, release);
    let state = lab.path("state");
    finish(&mut run(&pipeline, &state, 2)).succeeded();
    let found = lines(&state);
    // Most aircraft fly in the first two weeks and are cut from later ones.
    let (first, later) = found.split_at(6);
    assert!(first.iter().all(|line| line["mean"].is_array()), "{first:?}");
    let rows = |lines: &[Value]| lines.iter().map(|line| line["rows"].as_u64().unwrap()).sum::<u64>();
    assert!(rows(later) < rows(first) / 2, "{later:?}");
    let planned = plan(&pipeline, &[]);
    assert_eq!(planned["unit"], "entity tailnum");
    close("two weeks, two flights", &planned["noise_factor"], 2.0 * 2f64.sqrt(), 1e-9);
    // An overlapping window contains both weeks, so both count at once.
    let overlapping = plan(&aircraft(&lab, &format!("{release}window = 2\n")), &[]);
    close("overlap", &overlapping["noise_factor"], 2.0 * (2.0 * 4f64).sqrt(), 1e-9);
    let kept = "method = 'resilience'\ncorruption = 0.1\nscale = [40, 100]\n";
    finish(&mut run(&aircraft(&lab, kept), &lab.path("none"), 1))
        .failed(2, &["release.method", "one record of an entity"]);
    assert!(!lab.path("none").exists(), "nothing was begun");
}

#[test]
fn flags_for_moments_are_refused_by_name() {
    let lab = Lab::new();
    let state = lab.path("state");
    finish(&mut run(&weather(&lab, WEATHER, 91, MEAN, ""), &state, 1)).succeeded();
    for flags in [
        &["--workload", "window:3"][..],
        &["--view", "moments"],
        &["--beta1", "0.5"],
        &["--pca", "1"],
        &["--level", "0.9"],
        &["--joint"],
        &["--population"],
        &["--missing-at-random"],
        &["--covariance", "nearest"],
        &["--total"],
        &["--sample", "3"],
        &["--squares", "raw"],
    ] {
        shown(&state, flags).failed(2, &[flags[0], "estimates of windows", "leave it out"]);
    }
    assert_eq!(shown(&state, &["--last", "1", "--key", "JFK"]).succeeded().json().len(), 1);
}

/// The page of a log of windows: its guarantee, its charts, and its events, which are the lines of
/// `tail`.
#[test]
fn a_page_shows_windows() {
    let lab = Lab::new();
    for (name, release, group) in [("mean", MEAN, "mean"), ("covariance", COVARIANCE, "variance")] {
        let state = lab.path(name);
        let release = format!("{release}window = 4\nstride = 2\n");
        finish(&mut run(&weather(&lab, WEATHER, 30, &release, ""), &state, 1)).succeeded();
        let mut child = hushflow(["tail", "--web", "127.0.0.1:0"]).arg(&state).spawn().unwrap();
        let (address, _) = served(&mut child);
        let get = |path: &str| {
            let (status, body) =
                answer(send(&address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n")));
            assert!(status.contains("200"), "{path}: {status} {body}");
            body
        };
        let json = |path: &str| -> Value { serde_json::from_str(&get(path)).unwrap() };
        assert!(get("/").contains("page.js") && get("/page.js").contains("about"));
        let about = json("/about");
        assert_eq!((&about["epsilon"], &about["published"]), (&2.0.into(), &12.into()), "{about}");
        assert_eq!(about["view"]["workload"], "4 epochs, every 2 epochs");
        let lines: Vec<Value> = shown(&state, &["--key", "JFK"]).succeeded().json();
        let readings = json(&format!("/readings?key=JFK&of={group}:temp"));
        let values: Vec<&Value> = lines
            .iter()
            .map(|line| if name == "mean" { &line["mean"][0] } else { &line["covariance"][0][0] })
            .collect();
        assert_eq!(
            readings["keys"][0]["series"][0]["value"].as_array().unwrap().iter().collect::<Vec<_>>(),
            values
        );
        assert_eq!(readings["epochs"], serde_json::json!([2, 4, 6, 8, 10, 12]));
        assert!(json("/readings")["keys"].as_array().unwrap().len() == 3);
        let events = get("/events?key=JFK");
        for line in &lines {
            assert!(events.contains(&line["chain"].as_str().unwrap().to_owned()), "{events}");
        }
        assert_eq!(events.matches("data: ").count(), 6 + usize::from(events.contains("event: end\ndata: ")));
        let (status, _) =
            answer(send(&address, &format!("GET /readings?key=BOS HTTP/1.1\r\nHost: {address}\r\n\r\n")));
        assert!(status.contains("400"), "{status}");
        child.kill().unwrap();
        wait(child);
    }
}

#[test]
fn a_window_that_will_be_refused_is_foretold() {
    let lab = Lab::new();
    let weekly = weather(&lab, WEATHER, 7, MEAN, "");
    let planned = plan(&weekly, &["--records-per-epoch", "168"]);
    let needed = planned["rows_needed"].as_u64().unwrap();
    assert_eq!((&planned["all_refused"], &planned["noise"]), (&true.into(), &Value::Null), "{planned}");
    let said = finish(hushflow(["plan".as_ref(), weekly.as_os_str()]).args(["--records-per-epoch", "168"]));
    assert!(said.succeeded().out.contains("EVERY WINDOW WILL BE REFUSED"), "the forecast warns");
    // The least number of epochs for these rows suffices, one less does not.
    let least = needed.div_ceil(168);
    for (epochs, is_refused) in [(least - 1, true), (least, false)] {
        let release = format!("{MEAN}window = {epochs}\nstride = {epochs}\n");
        let planned = plan(&weather(&lab, WEATHER, 7, &release, ""), &["--records-per-epoch", "168"]);
        assert_eq!(planned["all_refused"], is_refused, "{epochs}: {planned}");
    }
    // The refusal of the run names the same number.
    let state = lab.path("state");
    finish(&mut run(&weekly, &state, 1)).succeeded();
    let message = lines(&state)[0]["refusal"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains(&format!("at least about {needed},")), "{message} {needed}");
    // Where epochs have a fixed number of rows, a run says it at its start.
    let text = std::fs::read_to_string(&weekly).unwrap();
    let (start, end) = (text.find("[key]").unwrap(), text.find("[privacy]").unwrap());
    let counted = format!("{}[epochs]\nrecords = 100\nhorizon = 3\n{}", &text[..start], &text[end..]);
    let ended = finish(&mut run(&lab.write("counted.toml", counted), &lab.path("counted"), 1)).succeeded();
    assert!(ended.err.contains("every window will be refused"), "{}", ended.err);
}

fn publication(path: &Path) -> WindowPublication {
    let mut parameters = Pipeline::load(path).unwrap().public_parameters();
    // Few trials show a large loss.
    parameters.privacy.epsilon = 10.0;
    WindowPublication::new(parameters, true).unwrap().unwrap()
}

/// A threshold attack on all windows that hold a unit. The charge holds, and the same windows
/// without the division of the budget exceed it, so the attack would find its absence. The
/// probability of a false alarm is 10⁻⁹, with a fixed seed.
#[test]
fn an_attack_on_all_windows_of_a_unit_stays_within_the_charge() {
    let lab = Lab::new();
    let release = "method = 'gaussian'\ncorruption = 0\nscale = [18, 6]\n";
    let sliding = weather(&lab, WEATHER, 30, &format!("{release}window = 4\n"), "");
    let entity = aircraft(&lab, &release.replace("18, 6", "40, 100"));
    let audit = |rows_per_epoch| WindowAudit {
        rows_per_epoch,
        trials: 5000,
        false_alarm: 1e-9,
        source: NoiseSource::Seeded(11),
    };
    for (pipeline, rows) in [(&sliding, 150), (&entity, 600)] {
        let honest = publication(pipeline);
        let found = audit(rows).run(&honest, &|_| ()).unwrap();
        assert!(found.ok && found.refused == 0.0, "{found:?}");
        assert!(found.mu > 0.5 * found.mu_claimed, "an attack far from the claim shows nothing: {found:?}");
    }
    // Covariances: the record goes from one corner of the bounds to the one that changes most.
    let covariance = publication(&weather(&lab, WEATHER, 30, "method = 'ssp-tight'\nwindow = 2\n", ""));
    let found = audit(150).run(&covariance, &|_| ()).unwrap();
    assert!(found.ok && found.mu > 0.7 * found.mu_claimed, "{found:?}");
    // A fault: every window gets the whole budget, as if a record were in a single window.
    let whole = weather(&lab, WEATHER, 30, release, "");
    let stolen = publication(&sliding).with_estimate_of(&publication(&whole));
    let found = audit(150).run(&stolen, &|_| ()).unwrap();
    assert!(!found.ok, "{found:?}");
}

#[test]
fn the_command_audits_windows() {
    let lab = Lab::new();
    let pipeline = weather(&lab, WEATHER, 30, &format!("{COVARIANCE}window = 2\n"), "");
    let audit = |more: &[&str]| finish(hushflow(["audit".as_ref(), pipeline.as_os_str()]).args(more));
    let report = &audit(&["--runs", "2000", "--confidence", "0.999999999", "--json"]).succeeded().json()[0];
    assert_eq!((&report["ok"], &report["windows"]), (&true.into(), &2.into()), "{report}");
    assert!(number(&report["mu"]) <= number(&report["mu_claimed"]), "{report}");
    audit(&["--epochs", "3"]).failed(2, &["--epochs are for moments"]);
    let shown = audit(&["--runs", "200"]).succeeded();
    assert!(shown.out.contains("The claim is not exceeded"), "{}", shown.out);
}

#[test]
fn impossible_windows_are_refused() {
    let lab = Lab::new();
    let check = |release: &str, message: &str| {
        let pipeline = weather(&lab, WEATHER, 91, &format!("{MEAN}{release}"), "");
        let ended = finish(&mut run(&pipeline, &lab.path("bad"), 1));
        assert!(ended.code != Some(0) && ended.err.contains(message), "{release}: {}", ended.err);
        assert!(!lab.path("bad").exists(), "nothing was begun");
    };
    check("window = 0\n", "window");
    check("window = 2\nstride = 3\n", "at least stride = 3");
    check("window = 'shrinking'\n", "growing");
    check("window = 9\nstride = 9\n", "no window of 9 epochs ends within a horizon of 4");
}
