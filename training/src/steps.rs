//! Private Adam step by step, for a program that has its own training loop.
//!
//! It computes the same sums, noise and updates as [`training_loop`](crate::training_loop) on one
//! worker, bit for bit, without a dataflow. The program takes the gradients, so it must keep the
//! plan: batches [in order](crate::sampling::Sampling::InOrder), where a record takes part at most
//! once in a pass, and at the same step of every pass.

use crate::TrainingSetup;
use crate::adam::{AdamError, Parameters, PrivateAdam};
use crate::batch_squares::BatchSquares;
use crate::claims::{ClaimError, Claims, Journal, RunId, new_run};
use crate::optimise::Optimiser;
use crate::plan::{TrainingError, TrainingPlan};
use crate::saved;
use crate::training_loop::add;
use hushflow_mechanism::mechanism::{Method, Strategies};
use hushflow_mechanism::moments::{ClippedSums, Sums};
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::release::{ReleaseShard, Released};
use hushflow_mechanism::strategy::StepError;
use hushflow_operators::Measurement;
use std::ops::Range;
use zeroize::Zeroizing;

/// A private training run whose gradients come from the caller.
pub struct TrainingSteps {
    plan: TrainingPlan,
    measurement: Measurement,
    machines: Vec<ReleaseShard>,
    optimisers: Vec<(Range<usize>, PrivateAdam)>,
    parameters: Parameters,
    sums: ClippedSums,
    squares: Option<BatchSquares>,
    /// Number of gradients in the open step.
    rows: usize,
    /// Buffer for gradients that are scaled before they are clipped.
    scaled: Vec<f64>,
    not_finite: u64,
    claims: Claims,
    /// Whether a step has failed half-way.
    failed: bool,
}

impl TrainingPlan {
    /// Begins a run whose gradients come from the caller, at these parameters. With a journal, a
    /// restored state can't draw a step that another process has drawn.
    ///
    /// # Errors
    /// As [`setup`](Self::setup), and [`TrainingError::OwnBatches`] if batches are sampled.
    pub fn steps(
        &self,
        strategies: &Strategies,
        parameters: Vec<f64>,
        noise: NoiseSource,
        journal: Option<Journal>,
    ) -> Result<TrainingSteps, TrainingError> {
        let TrainingSetup { measurement, batches, adam, parameters, .. } =
            self.setup(strategies, parameters, noise)?;
        if batches.have_private_sizes() {
            return Err(TrainingError::OwnBatches { sampling: self.sampling });
        }
        let (layout, shards) = (measurement.layout(), measurement.shards());
        let squares = match measurement.mechanism().moments().parameters().method {
            Method::BatchSquares { size } => Some(BatchSquares { most: size.get(), layout, shards }),
            _ => None,
        };
        let summed = if squares.is_some() { layout.without_second() } else { layout };
        let optimiser = Optimiser::new(&measurement, adam);
        let of_run = |number| Ok((optimiser.run(number), optimiser.of_run(number)?));
        let optimisers = (0..optimiser.runs()).map(of_run).collect::<Result<Vec<_>, AdamError>>()?;
        Ok(TrainingSteps {
            plan: *self,
            machines: (0..shards.number()).map(|shard| measurement.machine(shard)).collect(),
            optimisers,
            parameters: Parameters::new(parameters, &adam.setting),
            sums: ClippedSums::new(measurement.clipper().clone(), summed),
            squares,
            rows: 0,
            scaled: Vec::new(),
            not_finite: 0,
            claims: Claims::new(new_run()?, journal),
            failed: false,
            measurement,
        })
    }
}

impl TrainingSteps {
    /// The parameters after the last step.
    pub fn parameters(&self) -> &[f64] {
        self.parameters.values()
    }

    /// The next step; the first is 1.
    pub fn next_step(&self) -> u64 {
        self.optimisers.first().map_or(1, |(_, optimiser)| optimiser.next_step())
    }

    /// The plan.
    pub fn plan(&self) -> &TrainingPlan {
        &self.plan
    }

    /// Deviation of the noise over the sensitivity of the whole run.
    pub fn noise_multiplier(&self) -> f64 {
        self.measurement.mechanism().moments().parameters().noise_multiplier
    }

    /// Number of gradients so far that were not finite, and counted as zero. **Private**, for the
    /// operator only.
    pub fn not_finite(&self) -> u64 {
        self.not_finite
    }

    /// Returns ε spent so far, for the δ of the plan: that of the passes that have begun.
    ///
    /// # Errors
    /// [`TrainingError::Mechanism`] if it can't be counted.
    pub fn spent(&self) -> Result<f64, TrainingError> {
        match (self.next_step() - 1).div_ceil(self.plan.steps_per_pass()) {
            0 => Ok(0.0),
            passes => self.plan.spent(self.measurement.mechanism(), passes as u32),
        }
    }

    /// Clips gradients of the open step and adds them: one per record, whole and end to end.
    ///
    /// # Errors
    /// [`TrainingError::Gradients`] if they don't divide into records or are more than a batch, and
    /// [`AdamError::PastHorizon`] after the last step; then nothing is added.
    pub fn add<V: Copy + Into<f64>>(&mut self, gradients: &[V]) -> Result<(), TrainingError> {
        self.check()?;
        let dimension = self.parameters().len();
        let (rows, most) = (gradients.len() / dimension, self.plan.batch_size.get() as usize);
        if !gradients.len().is_multiple_of(dimension) || self.rows + rows > most {
            return Err(TrainingError::Gradients {
                values: gradients.len(),
                dimension,
                most: most - self.rows,
            });
        }
        self.failed = true;
        let added = add(&mut self.sums, &mut self.scaled, gradients, self.parameters.scale());
        self.not_finite += added.map_err(|error| TrainingError::Fault(error.to_string()))?;
        self.rows += rows;
        self.failed = false;
        Ok(())
    }

    /// Ends the open step: releases its sums and updates the parameters.
    ///
    /// # Errors
    /// [`TrainingError::Claim`] if a copy of this run has drawn the step, or the journal belongs to
    /// another run. After any other error the run must end.
    pub fn finish(&mut self) -> Result<(), TrainingError> {
        self.check()?;
        let step = self.next_step();
        self.claims.claim(step)?;
        self.failed = true;
        let sums = self.take_sums()?;
        let released = self.machines.iter_mut().zip(&sums);
        let released = released.map(|(machine, sums)| machine.release_row(step, sums.row()));
        let released = released.collect::<Result<Vec<_>, _>>()?;
        drop(sums);
        self.update(&released)?;
        self.rows = 0;
        self.failed = false;
        Ok(())
    }

    fn check(&self) -> Result<(), TrainingError> {
        if self.failed {
            return Err(TrainingError::Fault("an earlier step of this run has failed".into()));
        }
        let horizon = self.plan.horizon();
        if self.next_step() > horizon { Err(AdamError::PastHorizon { horizon }.into()) } else { Ok(()) }
    }

    /// Returns the sums of every shard.
    fn take_sums(&mut self) -> Result<Vec<Sums>, TrainingError> {
        let shards = self.measurement.shards();
        let runs = |shards: hushflow_mechanism::release::Shards| {
            let cut = shards.split(0..shards.coordinates());
            cut.map(|(_, run)| run.start as usize..run.end as usize)
        };
        let Some(squares) = &self.squares else { return Ok(self.sums.take(runs(shards))) };
        let empty = |run: Range<usize>| Zeroizing::new(vec![0; run.len()]);
        let mut all: Vec<_> = runs(shards).map(empty).collect();
        let first = self.sums.take(runs(squares.first_shards()));
        for (shard, sums) in (0..).zip(first) {
            for piece in squares.of(shard, &sums.to_wide()).map_err(TrainingError::Fault)? {
                let room = &mut all[piece.shard as usize][piece.offset as usize..];
                room[..piece.sums.len()].copy_from_slice(&piece.sums);
            }
        }
        Ok(all.into_iter().map(Sums::from).collect())
    }

    fn update(&mut self, released: &[Released]) -> Result<(), TrainingError> {
        let (layout, shards) = (self.measurement.layout(), self.measurement.shards());
        let pieces = |moments: Range<usize>, run: &Range<usize>| {
            let position = |parameter: usize| (moments.start + parameter).min(moments.end) as u64;
            shards.split(position(run.start)..position(run.end)).map(move |(shard, piece)| {
                let start = shards.range(shard).start;
                released[shard as usize]
                    .row()
                    .run((piece.start - start) as usize..(piece.end - start) as usize)
            })
        };
        let update = |(run, optimiser): &mut (Range<usize>, PrivateAdam)| {
            optimiser.push(pieces(layout.first(), run), pieces(layout.second(), run))
        };
        let parts = self.optimisers.iter_mut().map(update).collect::<Result<Vec<_>, _>>()?;
        self.parameters.apply(&parts)?;
        for ((_, optimiser), part) in self.optimisers.iter_mut().zip(parts) {
            optimiser.give_back(part);
        }
        Ok(())
    }

    /// Names everything that a saved state depends on.
    fn description(&self) -> String {
        let strategies = self.measurement.mechanism().strategies();
        let names = [strategies.first().name(), strategies.second().name()];
        let (multiplier, correlated) =
            (self.noise_multiplier(), self.measurement.mechanism().is_correlated());
        format!("{:?} {names:?} {multiplier:?} {correlated} {}", self.plan, self.parameters().len())
    }

    /// The complete state after the last finished step. **Private**: it holds sums or noise.
    ///
    /// It does not include gradients of the open step.
    pub fn save(&self) -> Zeroizing<Vec<u8>> {
        let machines: Vec<_> = self.machines.iter().map(ReleaseShard::save).collect();
        let numbers = self.optimisers.iter().map(|(_, optimiser)| optimiser.save());
        let numbers = numbers.chain([self.parameters().to_vec(), self.parameters.scale().to_vec()]);
        let bytes = |numbers: Vec<f64>| numbers.into_iter().flat_map(f64::to_le_bytes).collect::<Vec<_>>();
        let public: Vec<_> = numbers.map(bytes).collect();
        let (description, run) = (self.description(), self.claims.run());
        let steps = (self.next_step() - 1).to_le_bytes();
        let parts: Vec<&[u8]> = [description.as_bytes(), &run, &steps]
            .into_iter()
            .chain(machines.iter().map(|state| &state[..]))
            .chain(public.iter().map(|numbers| &numbers[..]))
            .collect();
        saved::join(&parts)
    }

    /// Continues from the state that [`save`](Self::save) returned for the same plan.
    ///
    /// # Errors
    /// [`TrainingError::State`] for a state of another plan, or a damaged one. The run then goes on
    /// after its last finished step.
    pub fn restore(&mut self, state: &[u8]) -> Result<(), TrainingError> {
        let before = (!self.failed).then(|| self.save());
        let restored = self.load(state);
        match before {
            Some(before) if self.failed => self.load(&before).and(restored),
            _ => restored,
        }
    }

    /// As [`restore`](Self::restore), but an error leaves a run that must end.
    fn load(&mut self, state: &[u8]) -> Result<(), TrainingError> {
        let refused = |reason| move || TrainingError::State(StepError::State { reason });
        let mut rest = saved::parts(state).map_err(|reason| refused(reason)())?;
        let short = refused("it is shorter than its parts");
        let mut part = || -> Result<&[u8], TrainingError> {
            let (length, after) = rest.split_first_chunk().ok_or_else(short)?;
            let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
            let (part, after) = after.split_at_checked(length).ok_or_else(short)?;
            rest = after;
            Ok(part)
        };
        if part()? != self.description().as_bytes() {
            return Err(refused("it is of another plan, strategy or number of parameters")());
        }
        let run = RunId::try_from(part()?).map_err(|_| short())?;
        let steps = u64::from_le_bytes(part()?.try_into().map_err(|_| short())?);
        self.failed = true;
        for machine in &mut self.machines {
            machine.restore(part()?)?;
            if machine.next_epoch() != steps + 1 {
                return Err(refused("its parts are of different steps")());
            }
        }
        for (_, optimiser) in &mut self.optimisers {
            optimiser.restore(steps, &saved::numbers(part()?).ok_or_else(short)?)?;
        }
        let values = saved::numbers(part()?).ok_or_else(short)?;
        let scale = saved::numbers(part()?).ok_or_else(short)?;
        if !rest.is_empty() {
            return Err(refused("it is longer than its parts")());
        }
        self.parameters.restore(values, scale)?;
        self.claims.of_run(run);
        let all = 0..self.measurement.shards().coordinates() as usize;
        drop(self.sums.take([all]));
        self.rows = 0;
        self.failed = false;
        Ok(())
    }
}

impl From<ClaimError> for TrainingError {
    fn from(error: ClaimError) -> Self {
        Self::Claim(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adam::GradientSquares;
    use crate::plan::Privatisation;
    use crate::sampling::Sampling;
    use crate::{Learner, training_loop};
    use hushflow_mechanism::accounting::{Delta, Epsilon};
    use hushflow_mechanism::sensitivity::Neighbours;
    use hushflow_mechanism::strategy::buffered::{Buffered, BufferedParameters, Buffers, ExponentialBuffer};
    use hushflow_mechanism::strategy::build;
    use hushflow_operators::{CommitLog, EpochCommit, Fault};
    use std::num::NonZeroU32;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    const DIMENSION: usize = 40;
    const HORIZON: u64 = 12;
    const SEED: NoiseSource = NoiseSource::Seeded(3);
    const PRIVATISATIONS: [Privatisation; 4] = [
        Privatisation::Jme,
        Privatisation::BatchSquares,
        Privatisation::PostProcessing(GradientSquares::Scaling { damping: 0.3 }),
        Privatisation::PostProcessing(GradientSquares::Debiased),
    ];

    fn plan(privatisation: Privatisation) -> TrainingPlan {
        TrainingPlan {
            records: 60,
            batch_size: NonZeroU32::new(10).unwrap(),
            passes: NonZeroU32::new(2).unwrap(),
            sampling: Sampling::InOrder,
            neighbours: Neighbours::ReplaceOneInPlace,
            epsilon: Epsilon::new(8.0).unwrap(),
            delta: Delta::new(1e-6).unwrap(),
            clip_norm: 1.0,
            privatisation,
            learning_rate: 0.05,
        }
    }

    fn strategies() -> [Strategies; 2] {
        let buffers = Buffers::Toeplitz(vec![ExponentialBuffer { decay: 0.75, weight: 0.5 }]);
        let fitted = BufferedParameters { horizon: Some(HORIZON), buffers };
        let buffered = Buffered::new("blt:1".parse().unwrap(), fitted).unwrap();
        let root = build("square-root", &"prefix".parse().unwrap(), Some(HORIZON)).unwrap();
        [Strategies::shared(Arc::new(buffered)).correlated(), root.into()]
    }

    fn gradient(record: usize, parameters: &[f64]) -> Vec<f32> {
        let target = |coordinate: usize| ((coordinate + record) % 7) as f64 / 7.0;
        parameters.iter().enumerate().map(|(coordinate, p)| (p - target(coordinate)) as f32).collect()
    }

    struct Pull(Arc<Mutex<Vec<f64>>>);

    impl Learner for Pull {
        type Number = f32;

        fn gradients(&mut self, _: u64, records: &[usize], parameters: &[f64], give: &mut dyn FnMut(&[f32])) {
            *self.0.lock().unwrap() = parameters.to_vec();
            records.iter().for_each(|&record| give(&gradient(record, parameters)));
        }
    }

    /// Takes steps up to and including this one.
    fn step_until(steps: &mut TrainingSteps, last: u64) {
        while steps.next_step() <= last {
            let first = (steps.next_step() - 1) as usize % 6 * 10;
            for record in first..first + 10 {
                let gradient = gradient(record, steps.parameters());
                steps.add(&gradient).unwrap();
            }
            steps.finish().unwrap();
        }
    }

    fn begun(privatisation: Privatisation, strategies: &Strategies) -> TrainingSteps {
        plan(privatisation).steps(strategies, vec![1.0; DIMENSION], SEED, None).unwrap()
    }

    #[test]
    fn steps_are_those_of_the_loop_and_of_a_restored_run() {
        for strategies in strategies() {
            for privatisation in PRIVATISATIONS {
                let learned = Arc::new(Mutex::new(Vec::new()));
                let (pull, fault) = (Pull(Arc::clone(&learned)), Fault::new());
                let setup = plan(privatisation).setup(&strategies, vec![1.0; DIMENSION], SEED).unwrap();
                let watched = fault.clone();
                timely::execute_directly(move |worker| {
                    let log: Box<dyn CommitLog<u64>> = Box::new(|_: &[EpochCommit<u64>]| Ok(()));
                    let raised = watched.clone();
                    worker.dataflow(|scope| training_loop(scope, setup, pull, Some(log), watched));
                    while !raised.is_raised() && worker.step_or_park(Some(Duration::from_millis(20))) {}
                    worker
                        .installed_dataflows()
                        .into_iter()
                        .for_each(|dataflow| worker.drop_dataflow(dataflow));
                });
                assert_eq!(fault.reason(), None);
                let mut steps = begun(privatisation, &strategies);
                step_until(&mut steps, 5);
                let (state, mut restored) = (steps.save(), begun(privatisation, &strategies));
                step_until(&mut restored, 2);
                restored.restore(&state).unwrap();
                step_until(&mut restored, HORIZON);
                assert_eq!(restored.parameters(), &learned.lock().unwrap()[..], "{privatisation:?}");
                let again = steps.finish().unwrap_err();
                assert!(matches!(again, TrainingError::Claim(ClaimError::Drawn { step: 6 })), "{again}");
                let past = restored.add(&[0.0; DIMENSION]).unwrap_err();
                assert!(matches!(past, TrainingError::Adam(AdamError::PastHorizon { horizon: HORIZON })));
            }
        }
    }

    #[test]
    fn a_state_that_does_not_fit_is_refused() {
        let [strategies, others] = strategies();
        let mut steps = begun(Privatisation::Jme, &strategies);
        step_until(&mut steps, 2);
        let state = steps.save();
        assert!(begun(Privatisation::Jme, &others).restore(&state).is_err());
        assert!(begun(Privatisation::BatchSquares, &strategies).restore(&state).is_err());
        for end in (0..state.len()).step_by(7) {
            let mut run = begun(Privatisation::Jme, &strategies);
            assert!(run.restore(&state[..end]).is_err(), "{end}");
        }
        let (before, mut run) = (steps, begun(Privatisation::Jme, &strategies));
        assert!(run.restore(&[&state[..], &[0]].concat()).is_err());
        for place in (0..state.len()).step_by(11) {
            let mut damaged = state.to_vec();
            damaged[place] ^= 1 << (place % 8);
            assert!(run.restore(&damaged).is_err(), "{place}");
        }
        // Of another step, with the right checksum: found only after parts of it are taken.
        let mut mixed = saved::parts(&state).unwrap().to_vec();
        mixed[8 + run.description().len() + 8 + 16 + 8] += 1;
        let mixed = saved::sealed(mixed);
        let error = run.restore(&mixed).unwrap_err().to_string();
        assert!(error.contains("of different steps"), "{error}");
        step_until(&mut run, 2);
        assert_eq!(run.parameters(), before.parameters());
    }

    #[test]
    fn gradients_that_are_no_records_are_refused_and_cost_nothing() {
        let [strategies, _] = strategies();
        let mut steps = begun(Privatisation::Jme, &strategies);
        assert_eq!(steps.spent().unwrap(), 0.0);
        for values in [1, DIMENSION - 1, 11 * DIMENSION] {
            let error = steps.add(&vec![0.0; values]).unwrap_err();
            assert!(matches!(error, TrainingError::Gradients { most: 10, .. }), "{error}");
        }
        steps.add(&[f64::NAN; DIMENSION]).unwrap();
        assert_eq!(steps.not_finite(), 1);
        steps.finish().unwrap();
        let first = steps.spent().unwrap();
        step_until(&mut steps, 6);
        assert_eq!(steps.spent().unwrap(), first, "a pass is paid when it begins");
        step_until(&mut steps, 7);
        let all = steps.spent().unwrap();
        assert!(first < all && all <= 8.0 * (1.0 + 1e-9), "{first} {all}");
    }

    #[test]
    fn sampled_batches_are_refused() {
        let [_, strategies] = strategies();
        let identity = build("identity", &"prefix".parse().unwrap(), Some(HORIZON)).unwrap();
        let plan = TrainingPlan { sampling: Sampling::Poisson, ..plan(PRIVATISATIONS[3]) };
        let run = plan.steps(&identity.into(), vec![1.0; DIMENSION], SEED, None);
        assert!(matches!(run.err().unwrap(), TrainingError::OwnBatches { .. }));
        assert!(plan.steps(&strategies, vec![1.0; DIMENSION], SEED, None).is_err());
    }
}
