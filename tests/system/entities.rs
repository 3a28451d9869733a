//! Runs that protect entities. The rows that pass the bound must equal those of plain loops, for
//! any order of rows and any number of workers and processes, and after kills. The noise must be
//! the one that `plan` predicts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::harness::{
    Assigned, Lab, Random, assigned, await_until, close, finish, hushflow, number, releases, run, run_as_two,
    stop, sums, sums_of, tail, wait,
};
use hushflow::operators::{EntityLimits, RepeatPolicy};
use hushflow::pipeline::Pipeline;

/// Rows that pass the bound with these limits, by entity and epoch.
fn bounded(pipeline: &Pipeline, limits: EntityLimits, rows: Vec<Assigned>) -> Vec<Assigned> {
    let EntityLimits { participations, min_separation, records_per_epoch, repeat_policy, .. } = limits;
    let mut entities: BTreeMap<String, BTreeMap<usize, Vec<Assigned>>> = BTreeMap::new();
    for row in rows {
        entities.entry(row.entity.clone()).or_default().entry(row.epoch).or_default().push(row);
    }
    let mut passed = Vec::new();
    for epochs in entities.into_values() {
        let mut admitted: Vec<usize> = Vec::new();
        for (epoch, rows) in epochs {
            let apart = admitted.last().is_none_or(|last| epoch - last >= min_separation as usize);
            if !apart || admitted.len() as u64 == participations {
                continue;
            }
            admitted.push(epoch);
            let rows = if repeat_policy == RepeatPolicy::Average { averages(pipeline, rows) } else { rows };
            passed.extend(rows.into_iter().take(records_per_epoch as usize));
        }
    }
    passed
}

/// One row for every key, in the order of first occurrence. Fractions of the bounds are counted in
/// units of 2⁻⁵².
fn averages(pipeline: &Pipeline, rows: Vec<Assigned>) -> Vec<Assigned> {
    let mut keys: Vec<Vec<Assigned>> = Vec::new();
    for row in rows {
        match keys.iter_mut().find(|rows| rows[0].key == row.key) {
            Some(rows) => rows.push(row),
            None => keys.push(vec![row]),
        }
    }
    let unit = (1_u64 << 52) as f64;
    let average = |rows: Vec<Assigned>| {
        let value = |(at, column): (usize, &hushflow::pipeline::Column)| {
            let (lower, width) = (column.lower, column.upper - column.lower);
            let fraction =
                |row: &Assigned| ((row.values[at].clamp(lower, column.upper) - lower) / width * unit).round();
            let sum: u128 = rows.iter().map(|row| fraction(row) as u128).sum();
            lower + width * (sum as f64 / rows.len() as f64 / unit)
        };
        let values = pipeline.columns.iter().enumerate().map(value).collect();
        Assigned { values, entity: String::new(), ..rows[0] }
    };
    keys.into_iter().map(average).collect()
}

fn expected(pipeline: &Path) -> Vec<Vec<i128>> {
    let pipeline = Pipeline::load(pipeline).expect("a pipeline");
    let (last, rows) = assigned(&pipeline);
    let Some(entity) = &pipeline.entity else { return sums_of(&pipeline, last, &rows) };
    let sums_within = |limits| sums_of(&pipeline, last, &bounded(&pipeline, limits, rows.clone()));
    let counted = sums_within(entity.limits);
    let Some(most) = entity.limits.sent_limit else { return counted };
    // Sent records are those that would count under a higher limit per entity and epoch.
    let sent = sums_within(EntityLimits { records_per_epoch: most.get(), ..entity.limits });
    let width = counted[0].len() / pipeline.key.as_ref().map_or(1, |key| key.values.len());
    let joined = |(counted, sent): (&Vec<i128>, &Vec<i128>)| {
        let keys = counted.chunks(width).zip(sent.chunks(width));
        keys.flat_map(|(counted, sent)| counted.iter().copied().chain([sent[0]])).collect()
    };
    counted.iter().zip(&sent).map(joined).collect()
}

/// Runs on `workers` workers; 0 means two processes with one worker each.
fn complete(pipeline: &Path, state: &Path, workers: usize) {
    if workers > 0 {
        finish(&mut run(pipeline, state, workers)).succeeded();
        return;
    }
    let [mut first, mut second] = run_as_two(pipeline, state, 1);
    let second = second.spawn().expect("the second process starts");
    finish(&mut first).succeeded();
    wait(second).succeeded();
}

fn by_aircraft() -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let text = std::fs::read_to_string(directory.join("flights_by_aircraft.toml")).expect("the example");
    text.replace("data/", &format!("{}/data/", directory.display()))
        .replace("[state]", "[state]\nkeep = 'all'")
}

fn changed(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from}");
    text.replacen(from, to, 1)
}

#[test]
fn aircraft_are_bounded_as_plain_loops_bound_them() {
    let lab = Lab::new();
    let example = by_aircraft();
    let keep = changed(&example, "\nseveral = \"average\"", "\nseveral = \"keep\"");
    let two = changed(&keep, "records_per_epoch = 1", "records_per_epoch = 2");
    let [sent, sent_means] = [&keep, &example]
        .map(|text| changed(text, "records_per_epoch = 1", "records_per_epoch = 1\nsent_limit = 3"));
    let mut seen = BTreeSet::new();
    for (name, text, workers) in [
        ("average", &example, 2),
        ("keep", &keep, 1),
        ("keep", &keep, 3),
        ("keep", &keep, 0),
        ("two", &two, 2),
        ("sent", &sent, 1),
        ("sent", &sent, 3),
        ("sent", &sent, 0),
        ("sent means", &sent_means, 2),
    ] {
        let pipeline = lab.write(&format!("{name}.toml"), text);
        let expected = expected(&pipeline);
        let width = expected[0].len() / 3;
        let counted: i128 = expected.iter().map(|epoch| epoch[0] + epoch[width] + epoch[2 * width]).sum();
        assert!((5000..20_000).contains(&counted), "{counted} of 26398 flights count");
        let state = lab.path(&format!("{name}-{workers}"));
        complete(&pipeline, &state, workers);
        assert!(sums(&state) == expected, "{name} on {workers} workers");
        seen.insert(expected);
    }
    assert_eq!(seen.len(), 5, "every kind of bound has sums of its own");
}

/// The flights, with about every third arrival delayed at random, and about every tenth row
/// duplicated. The copy comes at the same time, an hour or a day later. Rows are in order of
/// arrival.
fn disturbed(lab: &Lab) -> PathBuf {
    let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/flights_jan2013.csv");
    let text = std::fs::read_to_string(original).expect("the data");
    let (header, rows) = text.split_once('\n').expect("a header");
    let mut random = Random(6);
    let mut arrivals: Vec<(i64, u64, String)> = Vec::new();
    for row in rows.lines() {
        let fields: Vec<&str> = row.split(',').collect();
        let recorded = hushflow::time::parse_time(fields[1]).expect("a time") / 1_000_000;
        let delay = [0, 0, random.below(20 * 3600)][random.below(3) as usize];
        let mut copies = vec![delay];
        if random.below(10) == 0 {
            copies.push(delay + [0, 3600, 86_400][random.below(3) as usize]);
        }
        for delay in copies {
            let at = recorded + delay as i64;
            let (day, second) = (at / 86_400 - 15_705, at % 86_400);
            let date =
                if day <= 31 { format!("2013-01-{day:02}") } else { format!("2013-02-{:02}", day - 31) };
            let time = format!("{date}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60);
            let row = [&[fields[0], &time], &fields[2..]].concat().join(",");
            arrivals.push((at, random.below(1 << 40), row));
        }
    }
    arrivals.sort();
    let rows: String = arrivals.into_iter().map(|(_, _, row)| row + "\n").collect();
    lab.write("disturbed.csv", format!("{header}\n{rows}"))
}

#[test]
fn late_and_duplicate_flights_are_summed_by_the_policy() {
    let lab = Lab::new();
    let data = disturbed(&lab);
    let example = by_aircraft();
    let at = example.find("path = ").expect("a path");
    let end = at + example[at..].find('\n').expect("a line");
    let example = format!("{}path = \"{}\"{}", &example[..at], data.display(), &example[end..]);
    let records = changed(&example, "unit = \"entity\"", "unit = \"record\"");
    let section = records.find("[entity]").expect("a section")..records.find("[epochs]").expect("another");
    let records = [&records[..section.start], &records[section.end..]].concat();
    let mut seen = BTreeSet::new();
    for (name, text) in [("entities", &example), ("records", &records)] {
        for (lateness, late, workers) in
            [("0s", "fold", 1), ("1h", "drop", 2), ("6h", "drop", 3), ("2d", "fold", 2)]
        {
            let lateness_and_policy = format!("allowed_lateness = \"{lateness}\"\nlate = \"{late}\"\n#");
            let text = changed(text, "allowed_lateness = \"6h\"", &lateness_and_policy);
            let pipeline = lab.write(&format!("{name}-{lateness}.toml"), text);
            let expected = expected(&pipeline);
            let state = lab.path(&format!("{name}-{lateness}"));
            complete(&pipeline, &state, workers);
            assert!(sums(&state) == expected, "{name}, {lateness}, {late}");
            seen.insert(expected);
        }
    }
    assert_eq!(seen.len(), 8, "every policy has sums of its own");
}

/// People, a few of whom have most of the records.
fn people(lab: &Lab, epochs: u64) -> PathBuf {
    let mut random = Random(7);
    let mut csv = String::from("time,who,x\n");
    for minute in 0..epochs * 20 {
        let among = 1 + random.below(400);
        let few = 1 + random.below(among);
        let who = random.below(few);
        let (day, hour) = (1 + minute / 1440, minute / 60 % 24);
        let time = format!("2020-01-{day:02}T{hour:02}:{:02}:00Z", minute % 60);
        let _ = writeln!(csv, "{time},p{who},{}", random.below(2000) as f64 / 1000.0 - 1.0);
    }
    lab.write("people.csv", csv);
    let text = format!(
        "name = 'people'
        source.path = 'people.csv'
        columns = [{{ name = 'x', lower = -1, upper = 1 }}]
        entity = {{ column = 'who', participations = 12, min_separation = 5, records_per_epoch = 2, sent_limit = 4 }}
        epochs = {{ time = 'time', clock = 'event-time', start = '2020-01-01', length = '20min', horizon = {epochs} }}
        privacy = {{ unit = 'entity', neighbours = 'replace-one-in-place', epsilon = 1, delta = 1e-6 }}
        release.strategy = 'square-root'
        state.keep = 'all'"
    );
    lab.write("people.toml", text)
}

#[test]
fn bounds_survive_kills_and_other_numbers_of_workers() {
    let lab = Lab::new();
    let pipeline = people(&lab, 400);
    let expected = expected(&pipeline);
    let state = lab.path("state");
    // Kills before the first checkpoint, after it, and after the second.
    for (workers, enough) in [(1, 30), (2, 100), (3, 210)] {
        let mut child = run(&pipeline, &state, workers).spawn().expect("the run starts");
        await_until("epochs are published", || releases(&state).len() >= enough);
        child.kill().expect("a child can be killed");
        wait(child);
        tear_lists(&state);
    }
    complete(&pipeline, &state, 2);
    assert!(sums(&state) == expected, "a bound that a crash has moved");
    let verified = finish(hushflow(["verify"]).arg(&state)).succeeded();
    assert!(verified.err.is_empty(), "{}", verified.err);
}

/// Leaves a part of a frame behind each list of entities, as a kill during a checkpoint may do.
fn tear_lists(state: &Path) {
    let names =
        std::fs::read_dir(state).expect("a state directory").map(|entry| entry.expect("an entry").path());
    for list in names.filter(|path| path.extension().is_some_and(|extension| extension == "list")) {
        let bytes = std::fs::read(&list).expect("a list");
        std::fs::write(&list, [&bytes[..], &bytes[16..bytes.len() - 1]].concat())
            .expect("a list can be torn");
    }
}

/// A file of `rows` rows, each of another person, that a pipeline follows in epochs of 5000 rows.
fn followed(lab: &Lab, rows: usize) -> PathBuf {
    let rows = (0..rows).map(|row| format!("p{row},0.5\n"));
    lab.write("rows.csv", "who,x\n".to_owned() + &rows.collect::<String>());
    let text = "name = 'people'
        source = { path = 'rows.csv', follow = true }
        columns = [{ name = 'x', lower = -1, upper = 1 }]
        entity = { column = 'who', participations = 2 }
        epochs = { records = 5000, horizon = 9 }
        privacy = { unit = 'entity', epsilon = 1, delta = 1e-6 }
        release.strategy = 'square-root'
        state.keep = 'all'";
    lab.write("followed.toml", text)
}

#[test]
fn records_of_an_open_epoch_do_not_stop_a_resumed_run() {
    let lab = Lab::new();
    let (pipeline, state) = (followed(&lab, 14_500), lab.path("state"));
    let counts = || sums(&state).iter().map(|epoch| epoch[0]).collect::<Vec<_>>();
    let running = run(&pipeline, &state, 2).spawn().expect("the run starts");
    await_until("two epochs have closed", || releases(&state).len() == 2);
    // By then whole batches of the third epoch have been read, but its participants are not
    // committed.
    std::thread::sleep(std::time::Duration::from_millis(500));
    stop(&running);
    wait(running).succeeded();
    assert_eq!(counts(), [5000, 5000]);
    let ends = || finish(run(&pipeline, &state, 2).args(["--until-idle", "300ms"])).succeeded();
    ends();
    assert_eq!(counts(), [5000, 5000, 4500]);
    // The rows after the end of the third epoch belong to the fourth, which has not begun by the
    // clock.
    followed(&lab, 14_900);
    ends();
    assert_eq!(counts(), [5000, 5000, 4500]);
    followed(&lab, 15_100);
    ends();
    assert_eq!(counts(), [5000, 5000, 4500, 600]);
}

#[test]
fn the_noise_agrees_with_plan() {
    let lab = Lab::new();
    let pipeline = people(&lab, 40);
    let state = lab.path("state");
    complete(&pipeline, &state, 1);
    let plan = |more: &[&str]| {
        let mut plan = hushflow(["plan", "--json", "--strategy", "square-root"]);
        finish(plan.arg(&pipeline).args(more)).succeeded().json().remove(0)
    };
    let planned = plan(&[]);
    assert_eq!((&planned["participation"], &planned["records_at_once"]), (&"12x5+".into(), &2.into()));
    let moments =
        finish(&mut tail(&state, &["--view", "moments", "--workload", "prefix"])).succeeded().json();
    for (line, noise) in [(0, "first_noise"), (39, "last_noise")] {
        close(noise, &moments[line]["first_noise"], number(&planned[noise]["first"]), 1e-9);
        close(noise, &moments[line]["second_noise"][0][0], number(&planned[noise]["second"]), 1e-9);
    }
    let once = plan(&["--participation", "1"]);
    let ratio = number(&planned["joint_sensitivity"]) / number(&once["joint_sensitivity"]);
    assert!(
        ratio > 12_f64.sqrt(),
        "{ratio}: twelve participations give √12, or more if their columns overlap"
    );
    let mut ledger = hushflow(["ledger", "--json"]);
    let ledger = finish(ledger.arg(state.join("ledger"))).succeeded().json().remove(0);
    let entry = &ledger["entries"][0];
    assert_eq!((&entry["unit"], &entry["neighbours"]), (&"entity".into(), &"replace-one-in-place".into()));
    close("σ", &entry["noise_multiplier"], number(&planned["noise_multiplier"]), 1e-9);
}

/// Six hundred people, each of whom sends four rows to `a` and two to `b`; ε is so large that the
/// share is visible.
fn senders(lab: &Lab, more: &str) -> PathBuf {
    let row = |at: u64| format!("p{},{},{}\n", at / 6, ["a", "b"][usize::from(at % 6 > 3)], at % 10);
    lab.write("senders.csv", "who,kind,x\n".to_owned() + &(0..3600).map(row).collect::<String>());
    let text = format!(
        "name = 'senders'
        source.path = 'senders.csv'
        columns = [{{ name = 'x', lower = 0, upper = 9 }}]
        key = {{ column = 'kind', values = ['a', 'b'] }}
        entity = {{ column = 'who', participations = 1, {more} }}
        epochs = {{ records = 1800, horizon = 2 }}
        privacy = {{ unit = 'entity', epsilon = 20, delta = 1e-6 }}
        release.strategy = 'square-root'
        simulation.seed = 3"
    );
    lab.write("senders.toml", text)
}

/// 600 people have six records each, of which three count. The counters add up over workers.
#[test]
fn counters_show_what_limits_leave_out() {
    let lab = Lab::new();
    let pipeline = senders(&lab, "records_per_epoch = 3");
    for workers in [1, 2] {
        let state = lab.path(&format!("counters{workers}"));
        let ended = finish(run(&pipeline, &state, workers).arg("--counters")).succeeded();
        assert!(ended.err.contains("1,800  beyond the limits of their entities"), "{}", ended.err);
    }
}

#[test]
fn lines_show_the_share_that_counted() {
    let lab = Lab::new();
    let pipeline = senders(&lab, "records_per_epoch = 3, sent_limit = 8");
    let state = lab.path("state");
    complete(&pipeline, &state, 2);
    let shown = |more: &[&str]| {
        let mut tail = hushflow(["tail", "--workload", "prefix"]);
        finish(tail.arg(&state).args(more)).succeeded()
    };
    let total = shown(&["--total", "--format", "json"]).json();
    let keys = shown(&["--format", "json"]).json();
    // The last epoch: 600 people, all with six records, of whom the first three count.
    for (line, counted, sent) in
        [(&keys[2], 1800.0, 2400.0), (&keys[3], 0.0, 1200.0), (&total[1], 1800.0, 3600.0)]
    {
        let noise = number(&line["sent_noise"]);
        assert!((number(&line["sent"]) - sent).abs() < 5.0 * noise && noise < 0.1 * sent, "{line}");
        let within = |interval: &str, value: f64| {
            let [lower, upper] = [0, 1].map(|end| number(&line[interval][end]));
            lower <= value && value <= upper && lower < upper
        };
        assert!(within("sent_interval", number(&line["sent"])), "{line}");
        assert!(within("counted_share_interval", number(&line["counted_share"])), "{line}");
        assert!((number(&line["counted_share"]) - counted / sent).abs() < 0.1, "{line}");
    }
    close("of both keys", &total[1]["sent_noise"], number(&keys[2]["sent_noise"]) * 2f64.sqrt(), 1e-12);
    let planned = finish(hushflow(["plan", "--json", "--strategy", "square-root"]).arg(&pipeline));
    let planned = &planned.succeeded().json()[0];
    close("sent", &keys[2]["sent_noise"], number(&planned["last_noise"]["sent"]), 1e-9);
    let text = finish(hushflow(["plan", "--strategy", "square-root"]).arg(&pipeline)).succeeded().out;
    assert!(text.contains("sent ±"), "{text}");
    let compared = finish(hushflow(["plan"]).arg(&pipeline)).succeeded().out;
    let sent = format!("{:.3e}", 1.959_964 * number(&planned["last_noise"]["sent"]));
    let printed =
        compared.split("sent records of a key is known to ± ").nth(1).unwrap_or_else(|| panic!("{compared}"));
    let printed =
        printed.split("and ± ").nth(1).and_then(|rest| rest.split(' ').next()).expect("two numbers");
    assert_eq!(format!("{:.3e}", printed.parse::<f64>().expect("a number")), sent, "{compared}");
    let table = shown(&["--format", "table"]).out;
    assert!(table.contains("counted %: share of the records of entities in the epochs"), "{table}");
    let only = shown(&["--format", "table", "--columns", "counted"]).out;
    assert!(only.contains("counted %") && !only.contains("mean x"), "{only}");
    let csv = shown(&["--format", "csv"]).out;
    assert!(
        csv.contains(",count_noise,sent,sent_noise,counted_share,counted_share_lower,counted_share_upper,")
    );
    let fields = csv.lines().map(|line| line.split(',').count()).collect::<BTreeSet<_>>();
    assert_eq!(fields.len(), 1, "{csv}");
    let verified = finish(hushflow(["verify"]).arg(&state)).succeeded();
    assert!(verified.err.contains("seed") || verified.err.is_empty(), "{}", verified.err);
}

#[test]
fn lines_without_the_limit_have_no_share() {
    let lab = Lab::new();
    let pipeline = senders(&lab, "records_per_epoch = 3");
    let state = lab.path("state");
    complete(&pipeline, &state, 1);
    for format in ["json", "csv", "table"] {
        let mut tail = hushflow(["tail", "--workload", "prefix", "--format", format]);
        let out = finish(tail.arg(&state)).succeeded().out;
        assert!(!out.contains("sent") && !out.contains("counted_share"), "{out}");
    }
    let few = senders(&lab, "records_per_epoch = 3, sent_limit = 2");
    finish(&mut run(&few, &lab.path("few"), 1)).failed(2, &["sent_limit", "from records_per_epoch = 3"]);
}
