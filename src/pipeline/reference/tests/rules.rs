//! Checks that parser and schema refuse the same invalid combinations of fields.

use super::schema::faults;
use super::*;

/// Changes of [`Pipeline::EXAMPLE`] that break a rule.
const BROKEN_RULES: &[&[(&str, &str)]] = &[
    // [epochs]
    &[("arrival = \"recorded_at\"", "")],
    &[("arrival = \"recorded_at\"", "arrival = \"recorded_at\"\nclock = \"end-of-input\""), (LATENESS, "")],
    &[("arrival = \"recorded_at\"", "clock = \"end-of-input\"")],
    &[("arrival = \"recorded_at\"", "clock = \"end-of-input\"\nlate = \"drop\""), (LATENESS, "")],
    &[("arrival = \"recorded_at\"", "clock = \"event-time\"")],
    &[
        ("arrival = \"recorded_at\"", "clock = \"event-time\""),
        (DELTA, "delta = 1e-6\nneighbours = \"zero-out\""),
    ],
    &[(LATENESS, "week_starts = \"monday\"")],
    &[("start = \"2013-01-01T05:00:00Z\"", "")],
    &[("length = \"1d\"", "")],
    &[("time = \"event_time\"", "")],
    &[("time = \"event_time\"", "records = 100")],
    // [source]
    &[(PATH, "path = \"flights_jan2013.csv\"\nid = \"uuid\"")],
    &[(PATH, "path = \"flights_jan2013.csv\"\nstream = \"s\"")],
    &[(PATH, "path = [\"a.csv\", \"b.csv\"]\nsubject = \"s\"")],
    &[(PATH, "path = \"flights_jan2013.csv\"\nlargest_jump = \"2d\""), END_OF_INPUT, (LATENESS, "")],
    &[("[source]\npath = \"flights_jan2013.csv\"", SOURCES), BY_COUNT],
    &[("[source]\npath = \"flights_jan2013.csv\"", CLOCKED_SOURCES)],
    &[("[source]\npath = \"flights_jan2013.csv\"", PRIVATE_SOURCES)],
    &[("[source]\npath = \"flights_jan2013.csv\"", "[[sources]]\nname = \"a\"\npath = \"a.csv\"")],
    // Journals, and rows that can't be corrected.
    &[(PATH, "path = \"a.csv\"\njournal = true")],
    &[(PATH, "path = [\"a.csv\", \"b.csv\"]\njournal = true")],
    &[(PATH, "path = \"redis://h\"\nstream = \"s\"\njournal = true")],
    &[(PATH, "path = \"tcp://h:1\"\nformat = \"csv\"\njournal = false")],
    &[(PATH, "path = \"a.csv\"\njournal_limit = \"1 GiB\"")],
    &[(PATH, "path = \"-\"\nformat = \"csv\"\njournal_limit = \"1 GiB\"")],
    &[(PATH, "path = \"-\"\nformat = \"csv\"\njournal = false\njournal_limit = \"1 GiB\"")],
    &[(PATH, "path = [\"-\"]\nformat = \"csv\"\njournal = true\nmissing = \"reject\"")],
    &[(PATH, "path = \"-\"\nformat = \"csv\"\njournal = true\nmalformed = \"reject\"")],
    &[(PATH, "path = \"unix-listen:///run/s\"\nformat = \"csv\"\nmissing = \"reject\"")],
    &[(PATH, "path = \"redis://h\"\nstream = \"s\"\nmissing = \"reject\"")],
    &[(PATH, "path = [\"nats://h\"]\nstream = \"s\"\nmalformed = \"reject\"")],
    &[("[source]\npath = \"flights_jan2013.csv\"", SOURCES), ("\"a.csv\"", "\"a.csv\"\njournal = true")],
    &[
        ("[source]\npath = \"flights_jan2013.csv\"", SOURCES),
        ("\"a.csv\"", "\"tcp://h:1\"\nformat = \"csv\"\njournal = false"),
    ],
    &[
        ("[source]\npath = \"flights_jan2013.csv\"", SOURCES),
        ("\"b.csv\"", "\"b.csv\"\njournal_limit = \"1 GiB\""),
    ],
    // [[histograms]]
    &[(VIEW, "[[histograms]]\ncolumn = \"distance\"\nbins = 4\nedges = [0, 1, 2]")],
    &[(VIEW, "[[histograms]]\ncolumn = \"distance\"")],
    &[(VIEW, "[[histograms]]\ncolumn = \"sex\"\nvalues = [\"f\", \"m\"]\nbranching = 2")],
    &[(DELTA, "delta = 1e-6\nhistogram_weight = 0.2")],
    &[WINDOWS, (VIEW, "[[histograms]]\ncolumn = \"distance\"\nbins = 4"), PLACE],
    &[
        (DELTA, "delta = 1e-6\nunit = \"entity\""),
        (
            VIEW,
            "[entity]\ncolumn = \"user\"\nparticipations = 2\nseveral = \"average\"\n\
             [[histograms]]\ncolumn = \"sex\"\nvalues = [\"f\", \"m\"]",
        ),
    ],
    // [[columns]]
    &[
        ("[[columns]]\nname = \"distance\"\nlower = 0\nupper = 5000\n", ""),
        (PATH, "path = \"a.csv\"\nmissing = \"by-column\""),
    ],
    &[("lower = -60\n", "")],
    &[("upper = 240\n", "")],
    &[("upper = 240\n", "bounds = { EWR = [0, 60], JFK = [0, 60], LGA = [0, 60] }\n")],
    &[("upper = 240\n", "upper = 240\nbounds = { EWR = [0, 60] }\n"), (KEY, "")],
    // [privacy] and [entity]
    &[(DELTA, "delta = 1e-6\nunit = \"entity\"")],
    &[(DELTA, "delta = 1e-6\n[entity]\ncolumn = \"tailnum\"\nparticipations = 3")],
    &[(DELTA, "delta = 1e-6\nunit = \"record\"\n[entity]\ncolumn = \"tailnum\"\nparticipations = 3")],
    &[(DELTA, "delta = 1e-6\nsecond_moments = \"none\"\nsecond_moment_weight = 0.5"), (GAUSSIAN, "")],
    // [ledger]
    &[("[[views]]", "[ledger]\n[[views]]")],
    &[("[[views]]", "[ledger]\ndirectory = \"ledger\"\n[[views]]")],
    &[(
        "[[views]]",
        "[ledger.budget]\nepsilon = 2\ndelta = 1e-6\nunit = \"record\"\nentity = \"user\"\n[[views]]",
    )],
    // [release]
    &[(STRATEGY, "strategy = \"square-root\"\nmemory_limit = 100")],
    &[(STRATEGY, "memory_limit = 100")],
    &[(STRATEGY, "first_moment_share = 0.5")],
    &[(STRATEGY, "method = \"cs\"\nfirst_moment_share = 0.5")],
    &[(STRATEGY, "corruption = 0.1")],
    &[(STRATEGY, "centre = 0.1")],
    &[(STRATEGY, "method = \"cs\""), (DELTA, "delta = 1e-6\nsecond_moments = \"none\""), (GAUSSIAN, "")],
    &[(STRATEGY, "method = \"ime\""), (DELTA, "delta = 1e-6\nsecond_moment_weight = 0.5")],
    &[(STRATEGY, "method = \"pp\"\nsecond_strategy = \"blt:4\""), (GAUSSIAN, "")],
    &[(STRATEGY, "method = \"joint-clip\"\nsecond_workload = \"average\"")],
    &[
        (STRATEGY, "second_strategy = \"blt:4\""),
        (DELTA, "delta = 1e-6\nsecond_moments = \"none\""),
        (GAUSSIAN, ""),
    ],
    &[(STRATEGY, "second_strategy = \"square-root\"\nmemory_limit = 100")],
    &[(STRATEGY, "method = \"joint-clip\""), (PATH, "path = \"a.csv\"\nmissing = \"by-column\"")],
    // Estimators of windows.
    &[WINDOWS, (VIEW, ""), PLACE, ("method = \"auto\"\ncorruption = 0.1", "method = \"auto\"")],
    &[WINDOWS, PLACE],
    &[WINDOWS, (VIEW, "")],
    &[WINDOWS, (VIEW, ""), (DELTA, "delta = 1e-6\nneighbours = \"zero-out\"")],
    &[WINDOWS, (VIEW, ""), (DELTA, "delta = 1e-6\nneighbours = \"replace-one-in-place\"\nclip_norm = 1")],
    &[
        WINDOWS,
        (VIEW, ""),
        (DELTA, "delta = 1e-6\nneighbours = \"replace-one-in-place\"\nsecond_moments = \"full\""),
    ],
    &[WINDOWS, (VIEW, ""), PLACE, ("corruption = 0.1", "corruption = 0.1\nrange = 10")],
    &[WINDOWS, (VIEW, ""), PLACE, ("corruption = 0.1", "corruption = 0.1\ncentre = 0.1")],
    &[WINDOWS, (VIEW, ""), PLACE, ("corruption = 0.1", "corruption = 0.1\nworkload = \"prefix\"")],
    &[WINDOWS, (VIEW, ""), PLACE, (PATH, "path = \"a.csv\"\nmissing = \"by-column\"")],
    &[WINDOWS, (VIEW, ""), PLACE, ("upper = 240\n", "upper = 240\nbounds = { EWR = [0, 60] }\n")],
    &[WINDOWS, (VIEW, ""), PLACE, ("method = \"auto\"", "method = \"tukey\"\nscale = [1, 1]")],
    &[WINDOWS, (VIEW, ""), PLACE, ("method = \"auto\"", "method = \"tukey\"\nrange = 10")],
    &[WINDOWS, (VIEW, ""), PLACE, ("method = \"auto\"", "method = \"resilience\"\nscale = \"whiten\"")],
    &[
        WINDOWS,
        (VIEW, ""),
        PLACE,
        ("corruption = 0.1", "corruption = 0.1\n[simulation]\nseed = 1\noffsets = \"o.csv\""),
    ],
    &[(STRATEGY, "method = \"ssp\""), (VIEW, ""), ("workload = \"prefix\"\n", "")],
    &[(STRATEGY, "method = \"ssp\"\ncorruption = 0.1"), (VIEW, ""), PLACE, ("workload = \"prefix\"\n", "")],
    &[
        WINDOWS,
        (VIEW, ""),
        (
            DELTA,
            "delta = 1e-6\nneighbours = \"replace-one-in-place\"\nunit = \"entity\"\n[entity]\ncolumn = \"tailnum\"\n\
             participations = 3\nsent_limit = 9",
        ),
    ],
    &[WINDOWS, (VIEW, ""), PLACE, ("corruption = 0.1", "corruption = 0.1\nwindow = \"shrinking\"")],
    &[(STRATEGY, "window = 2")],
    // [training]
    &[(KEY, TRAINING), PLACE],
    &[NO_EPOCHS, (VIEW, ""), (STRATEGY, ""), (KEY, TRAINING), PLACE],
    &[NO_EPOCHS, (STRATEGY, ""), (KEY, TRAINING), TRAINED],
    &[NO_EPOCHS, (VIEW, ""), (KEY, TRAINING), TRAINED, ("optimiser = \"sgd\"", "momentum = 0.5")],
    &[NO_EPOCHS, (VIEW, ""), (KEY, TRAINING), TRAINED, ("optimiser = \"sgd\"", "classes = [\"a\", \"b\"]")],
    &[NO_EPOCHS, (VIEW, ""), (KEY, TRAINING), TRAINED, ("\"linear\"", "\"gradients\"")],
    &[NO_EPOCHS, (VIEW, ""), (KEY, TRAINING), TRAINED, ("\"linear\"", "\"softmax\"")],
    &[NO_EPOCHS, (VIEW, ""), (KEY, TRAINING), TRAINED, (STRATEGY, "method = \"pp\"")],
    &[
        NO_EPOCHS,
        (VIEW, ""),
        (KEY, TRAINING),
        TRAINED,
        ("in-place\"", "in-place\"\nsecond_moments = \"full\""),
    ],
    &[NO_EPOCHS, (VIEW, ""), (KEY, TRAINING), TRAINED, (STRATEGY, "second_strategy = \"blt:4\"")],
    // [[views]] and [[sinks]]
    &[("workload = \"average\"", "")],
    &[(GAUSSIAN, "estimate = \"regression\"")],
    &[(GAUSSIAN, "estimate = \"moments\"\nbeta1 = 0.9")],
    &[("[[views]]", "[[sinks]]\npath = \"a.ndjson\"\nstream = \"s\"\n[[views]]")],
];

/// Changes that make a valid pipeline.
const VALID: &[&[(&str, &str)]] = &[
    &[(LATENESS, "")],
    &[END_OF_INPUT, (LATENESS, "")],
    &[("arrival = \"recorded_at\"", "clock = \"event-time\""), PLACE],
    &[
        (LATENESS, "timezone = \"UTC\"\nlength = \"1 week\"\nweek_starts = \"tuesday\""),
        ("length = \"1d\"\n", ""),
    ],
    &[(PATH, "path = \"a.csv\"\nid = \"uuid\""), (LATENESS, "late = \"drop\"")],
    &[("[source]\npath = \"flights_jan2013.csv\"", SOURCES)],
    &[(PATH, "path = \"-\"\nformat = \"csv\"\njournal = true\njournal_limit = \"1 GiB\"")],
    &[(PATH, "path = [\"-\"]\nformat = \"csv\"\njournal = true")],
    &[(PATH, "path = \"-\"\nformat = \"csv\"\njournal = false\nmissing = \"reject\"")],
    &[(PATH, "path = \"tcp://h:1\"\nformat = \"csv\"\njournal = true\njournal_limit = \"1 GiB\"")],
    &[(PATH, "path = \"redis://h\"\nstream = \"s\"\njournal = false\nmissing = \"by-column\"")],
    &[(PATH, "path = \"a.csv\"\njournal = false\nmissing = \"reject\"\nmalformed = \"reject\"")],
    &[("upper = 240\n", "bounds = { EWR = [0, 60], JFK = [0, 60], LGA = [0, 60] }\n"), ("lower = -60\n", "")],
    &[(DELTA, "delta = 1e-6\nunit = \"entity\"\n[entity]\ncolumn = \"tailnum\"\nparticipations = 3")],
    &[("[[views]]", "[ledger]\ndirectory = \"ledger\"\ndata_set = \"d\"\n[[views]]")],
    &[(STRATEGY, "strategy = \"auto\"\nmemory_limit = 100")],
    &[(STRATEGY, "method = \"ime\"\nfirst_moment_share = 0.5")],
    &[(STRATEGY, "second_strategy = \"auto\"\nmemory_limit = 100\nsecond_workload = \"average\"")],
    &[NO_EPOCHS, (VIEW, ""), (KEY, TRAINING), TRAINED],
    &[
        NO_EPOCHS,
        (VIEW, ""),
        (KEY, TRAINING),
        TRAINED,
        (STRATEGY, "second_strategy = \"blt:4\""),
        ("optimiser = \"sgd\"", "optimiser = \"jme\""),
    ],
    &[WINDOWS, (VIEW, ""), PLACE],
    &[WINDOWS, (VIEW, ""), PLACE, ("method = \"auto\"", "method = \"tukey\"\nrange = 10\nscale = [1, 1]")],
    &[(STRATEGY, "method = \"ssp\"\ncentre = 0.1"), (VIEW, ""), PLACE, ("workload = \"prefix\"\n", "")],
    &[WINDOWS, (VIEW, ""), PLACE, ("corruption = 0.1", "corruption = 0.1\nwindow = 4\nstride = 2")],
    &[WINDOWS, (VIEW, ""), PLACE, ("corruption = 0.1", "corruption = 0.1\nstride = 2")],
    &[WINDOWS, (VIEW, ""), PLACE, ("corruption = 0.1", "corruption = 0.1\nwindow = \"growing\"\nstride = 2")],
    &[
        WINDOWS,
        (VIEW, ""),
        (
            DELTA,
            "delta = 1e-6\nneighbours = \"replace-one-in-place\"\nunit = \"entity\"\n[entity]\ncolumn = \"tailnum\"\n\
             participations = 3",
        ),
    ],
];

const PATH: &str = "path = \"flights_jan2013.csv\"";
const LATENESS: &str = "allowed_lateness = \"6h\"";
const DELTA: &str = "delta = 1e-6";
const STRATEGY: &str = "strategy = \"square-root\"";
const GAUSSIAN: &str = "estimate = \"gaussian\"";
const KEY: &str = "[key]                   # one series of releases per value\ncolumn = \"origin\"\nvalues = [\"EWR\", \"JFK\", \"LGA\"]";
const VIEW: &str = "[[views]]\nname = \"so far\"\nworkload = \"average\"\nestimate = \"gaussian\"";
const END_OF_INPUT: (&str, &str) = ("arrival = \"recorded_at\"", "clock = \"end-of-input\"");
const PLACE: (&str, &str) = (DELTA, "delta = 1e-6\nneighbours = \"replace-one-in-place\"");
const NO_EPOCHS: (&str, &str) = (
    "[epochs]\ntime = \"event_time\"\narrival = \"recorded_at\" # the public clock: when the row arrived\nstart = \
     \"2013-01-01T05:00:00Z\"\nlength = \"1d\"\nallowed_lateness = \"6h\"\nhorizon = 32\n",
    "",
);
const TRAINED: (&str, &str) = (DELTA, "delta = 1e-6\nneighbours = \"replace-one-in-place\"\nclip_norm = 1");
const TRAINING: &str = "[training]\nmodel = \"linear\"\ntarget = \"distance\"\nrecords = 90\nbatch_size = 9\npasses = 2\n\
    learning_rate = 1\noptimiser = \"sgd\"";
const WINDOWS: (&str, &str) =
    ("strategy = \"square-root\"\nworkload = \"prefix\"", "method = \"auto\"\ncorruption = 0.1");
const BY_COUNT: (&str, &str) = (
    "time = \"event_time\"\narrival = \"recorded_at\" # the public clock: when the row arrived\nstart = \
     \"2013-01-01T05:00:00Z\"\nlength = \"1d\"\nallowed_lateness = \"6h\"",
    "records = 100",
);
const SOURCES: &str =
    "[[sources]]\nname = \"a\"\npath = \"a.csv\"\n[[sources]]\nname = \"b\"\npath = \"b.csv\"";
const CLOCKED_SOURCES: &str = "[[sources]]\nname = \"a\"\npath = \"a.csv\"\narrival = \"r\"\nclock = \"end-of-input\"\n\
    [[sources]]\nname = \"b\"\npath = \"b.csv\"";
const PRIVATE_SOURCES: &str = "[[sources]]\nname = \"a\"\npath = \"a.csv\"\nclock = \"event-time\"\n\
    [[sources]]\nname = \"b\"\npath = \"b.csv\"";

fn changed(changes: &[(&str, &str)]) -> String {
    changes.iter().fold(Pipeline::EXAMPLE.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    })
}

#[test]
fn parser_and_schema_refuse_mistakes_in_several_fields() {
    let schema = json_schema();
    let mut accepted = Vec::new();
    for changes in BROKEN_RULES {
        let text = changed(changes);
        let (parsed, found) = (parse(&text), faults(&schema, &text));
        if parsed.is_ok() || found.is_empty() {
            accepted.push(format!("{changes:?}\n  parser {:?}\n  schema {found:?}", parsed.err()));
        }
    }
    assert!(accepted.is_empty(), "{} of {}:\n{}", accepted.len(), BROKEN_RULES.len(), accepted.join("\n"));
    for changes in VALID {
        let text = changed(changes);
        assert_eq!((parse(&text).err(), faults(&schema, &text)), (None, Vec::new()), "{changes:?}");
    }
}
