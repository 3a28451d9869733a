//! Adjacency of streams, and the guarantee for some pairs of streams that follows from one for
//! others.
//!
//! A guarantee is about pairs of streams. An [`Adjacency`] names the pairs by their protected unit
//! and their neighbour relation. Guarantees about the same pairs compose
//! ([`composition`](super::composition)). Guarantees about different pairs must first be converted
//! to the same pairs.
//!
//! Take any mechanism whose squared distance, in deviations of its noise, is at most μ² for all
//! pairs of R. `R → S: f` says that its squared distance is then at most (fμ)² for all pairs of S.
//! Distances obey the triangle inequality. So f is the number of R-steps that lead from one stream
//! of an S-pair to the other (group privacy: Dong, Roth & Su 2022, Theorem 2.14, gives fμ-GDP).
//!
//! # The same unit
//! | from | to | f | why |
//! |---|---|---|---|
//! | any | the same | 1 | |
//! | replace-one | in place | 1 | a record with other values in the same cell is another record |
//! | replace-one | zero-out | 1 | a blank is one of the possible replacements |
//! | zero-out | replace-one, in place | 2 | blank the unit, then replace the blank |
//! | in place | replace-one, zero-out | none | counts are exact, so they reveal a moved record |
//!
//! # A smaller unit within a larger one
//! A record lies within its entity. A device lies within its user if the pipeline file says so
//! ([`Nesting`]). Let U be the larger unit, and let the rows of one smaller unit s change. In each
//! of the two streams all rows of s belong to one U: to e before the change, to f after it.
//!
//! | from, about U | to, about s | f | path of streams |
//! |---|---|---|---|
//! | replace-one | zero-out | 1 | replace e's rows by e's other rows and blanks |
//! | replace-one | replace-one, in place | 2 | blank the rows of s in e, then insert f's rows |
//! | zero-out | zero-out | 2 | blank all rows of e, then restore those that are not of s |
//! | zero-out | replace-one, in place | 4 | the same for e, then for f |
//! | in place | in place | 1 | owners stay, so e = f; values of some of e's rows change |
//! | in place | replace-one, zero-out | none | as above |
//!
//! In a pipeline with in-place privacy, keys, event times and each row's owner are public and do
//! not change. In other pipelines, they may be among the values that change. Hence the factors 2
//! and 4 above.
//!
//! Fewer steps are not enough. The other records of e stay the same in the *stream*, but different
//! ones may pass the bound on participations: when the first row of e disappears, a later row
//! passes that was cut before. So e leaves one pattern of epochs and enters another, which zero-out
//! does not allow in one step. The squared distance is then up to twice the squared distance of a
//! zero-out step where no columns of C oppose each other, and up to four times where some do. If s
//! moves from e to f, both change pattern at once, and e may enter an epoch that f enters too: the
//! distance is then √6 times that of one step of zero-out, and √3 times that of one step of
//! replace-one. `operators/src/bound/attack.rs` measures these distances exactly, through the rule
//! of the bound.
//!
//! The table holds for every limit of the bound (k, b, m, means of several records). It only
//! requires that the rows that pass for an entity are a function of that entity's own rows. It also
//! holds when duplicates are removed, because duplicates are found among the rows of one entity.
//!
//! # Pairs that no steps connect
//! A guarantee about s implies nothing about a larger unit: a unit with k members costs kμ, and
//! nothing bounds k. A guarantee about one kind of entity implies nothing about another kind unless
//! the second lies within the first.
//!
//! The increase of δ by discrete noise does not grow with f. It comes from the distance between the
//! actual noise and its ideal, which does not depend on the data. The increase by the discovery of
//! keys covers both entities of a moved record (`discovery/mod.rs`).

use crate::sensitivity::Neighbours;
use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

/// The part of a stream that is protected as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// One record.
    Record,
    /// All records of an entity of this kind, such as `user`.
    Entity(String),
}

impl Unit {
    /// Returns the kind of entity, if one is protected.
    pub fn entity(&self) -> Option<&str> {
        match self {
            Unit::Record => None,
            Unit::Entity(kind) => Some(kind),
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unit::Record => f.write_str("record"),
            Unit::Entity(kind) => write!(f, "entity {kind}"),
        }
    }
}

/// Which kinds of entities lie within which. A property of the data, not of any mechanism.
///
/// `device` lies within `user` when in every stream all records of one device belong to one user.
///
/// ```
/// use hushflow_mechanism::accounting::adjacency::Nesting;
///
/// let nesting = Nesting::new([("device", "user"), ("user", "household")]);
/// assert!(nesting.is_within("device", "household"));
/// assert!(!nesting.is_within("household", "device"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nesting(Vec<(String, String)>);

impl Nesting {
    /// Builds the nesting from pairs: a smaller kind, and the larger kind that contains it.
    pub fn new<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self(pairs.into_iter().map(|(smaller, larger)| (smaller.into(), larger.into())).collect())
    }

    /// Returns whether a chain of pairs leads from `smaller` to `larger`, or both are the same.
    pub fn is_within(&self, smaller: &str, larger: &str) -> bool {
        let mut reached = vec![smaller];
        let mut next = 0;
        while let Some(&kind) = reached.get(next) {
            if kind == larger {
                return true;
            }
            for (inner, outer) in &self.0 {
                if inner == kind && !reached.contains(&outer.as_str()) {
                    reached.push(outer);
                }
            }
            next += 1;
        }
        false
    }
}

/// The pairs of streams that a guarantee is about: those that differ in one unit, as the neighbour
/// relation allows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Adjacency {
    /// The unit that is protected as a whole.
    pub unit: Unit,
    /// How the unit may differ.
    pub neighbours: Neighbours,
}

/// A guarantee that implies nothing about the requested pairs of streams.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("a guarantee for {found} says nothing about {target}: {reason}")]
pub struct Incomparable {
    /// The adjacency of the guarantee.
    pub found: Adjacency,
    /// The requested adjacency.
    pub target: Adjacency,
    /// The reason.
    pub reason: String,
}

impl Adjacency {
    /// Returns the number of steps between streams of this adjacency that lead from one stream of a
    /// `target` pair to the other. A mechanism that is μ-private for this adjacency is
    /// (steps·μ)-private for `target`. The table and its proofs are at the head of this module's
    /// source.
    ///
    /// # Errors
    /// [`Incomparable`] if no number of steps is enough for all pairs.
    pub fn steps_to(&self, target: &Adjacency, nesting: &Nesting) -> Result<u32, Incomparable> {
        let none = |reason| Err(Incomparable { found: self.clone(), target: target.clone(), reason });
        let larger = match (&self.unit, &target.unit) {
            (Unit::Record, Unit::Record) => false,
            (Unit::Entity(found), Unit::Entity(target)) if found == target => false,
            (Unit::Record, Unit::Entity(kind)) => {
                return none(format!(
                    "a {kind} may have any number of records, and k of them cost k times as much"
                ));
            }
            (Unit::Entity(_), Unit::Record) => true,
            (Unit::Entity(found), Unit::Entity(target)) if nesting.is_within(target, found) => true,
            (Unit::Entity(found), Unit::Entity(target)) if nesting.is_within(found, target) => {
                return none(format!(
                    "a {target} may have any number of {found} entities, and k of them cost k times as much"
                ));
            }
            (Unit::Entity(found), Unit::Entity(target)) => {
                return none(format!(
                    "nothing says that each {target} lies within one {found}: if so, add within = [\"{found}\"] to \
                     [entity] where its column is that of {target}"
                ));
            }
        };
        match (self.neighbours, target.neighbours) {
            (Neighbours::ReplaceOneInPlace, Neighbours::ReplaceOneInPlace) => Ok(1),
            (Neighbours::ReplaceOneInPlace, _) => none(
                "counts were released exactly, so whether a record came, went or moved is not hidden".into(),
            ),
            (Neighbours::ReplaceOne, Neighbours::ZeroOut) => Ok(1),
            (Neighbours::ReplaceOne, _) => Ok(if larger { 2 } else { 1 }),
            (Neighbours::ZeroOut, Neighbours::ZeroOut) => Ok(if larger { 2 } else { 1 }),
            (Neighbours::ZeroOut, _) => Ok(if larger { 4 } else { 2 }),
        }
    }
}

impl fmt::Display for Adjacency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.unit {
            Unit::Record => write!(f, "{} neighbours", self.neighbours),
            Unit::Entity(kind) => write!(f, "{} neighbours of entities ({kind})", self.neighbours),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Neighbours::{ReplaceOne, ReplaceOneInPlace, ZeroOut};

    fn entity(kind: &str) -> Unit {
        Unit::Entity(kind.into())
    }

    /// Each device belongs to one user, and each user to one household. Sites are unrelated.
    fn nesting() -> Nesting {
        Nesting::new([("device", "user"), ("user", "household")])
    }

    fn all() -> impl Iterator<Item = Adjacency> {
        let kinds = ["device", "user", "household", "site"];
        let units = [Unit::Record].into_iter().chain(kinds.map(entity));
        units.flat_map(|unit| {
            [ReplaceOne, ReplaceOneInPlace, ZeroOut]
                .map(|neighbours| Adjacency { unit: unit.clone(), neighbours })
        })
    }

    fn check(units: [&Unit; 2], neighbours: [Neighbours; 2], expected: Option<u32>) {
        let [from, to] = [0, 1].map(|at| Adjacency { unit: units[at].clone(), neighbours: neighbours[at] });
        assert_eq!(from.steps_to(&to, &nesting()).ok(), expected, "{from} to {to}");
    }

    #[test]
    fn every_pair_of_neighbours_is_converted_or_refused() {
        for unit in [Unit::Record, entity("user")] {
            let check = |from, to, expected| check([&unit, &unit], [from, to], expected);
            check(ReplaceOne, ReplaceOne, Some(1));
            check(ReplaceOne, ReplaceOneInPlace, Some(1));
            check(ReplaceOne, ZeroOut, Some(1));
            check(ZeroOut, ReplaceOne, Some(2));
            check(ZeroOut, ReplaceOneInPlace, Some(2));
            check(ZeroOut, ZeroOut, Some(1));
            check(ReplaceOneInPlace, ReplaceOne, None);
            check(ReplaceOneInPlace, ReplaceOneInPlace, Some(1));
            check(ReplaceOneInPlace, ZeroOut, None);
        }
    }

    #[test]
    fn a_larger_unit_protects_a_smaller_one_in_more_steps() {
        for (larger, smaller) in
            [("user", Unit::Record), ("user", entity("device")), ("household", entity("device"))]
        {
            let check = |from, to, expected| check([&entity(larger), &smaller], [from, to], expected);
            check(ReplaceOne, ReplaceOne, Some(2));
            check(ReplaceOne, ReplaceOneInPlace, Some(2));
            check(ReplaceOne, ZeroOut, Some(1));
            check(ZeroOut, ReplaceOne, Some(4));
            check(ZeroOut, ReplaceOneInPlace, Some(4));
            check(ZeroOut, ZeroOut, Some(2));
            check(ReplaceOneInPlace, ReplaceOne, None);
            check(ReplaceOneInPlace, ReplaceOneInPlace, Some(1));
            check(ReplaceOneInPlace, ZeroOut, None);
        }
    }

    #[test]
    fn a_smaller_or_unrelated_unit_protects_no_other() {
        let reason = |from: Unit, to: Unit| {
            let [from, to] = [from, to].map(|unit| Adjacency { unit, neighbours: ZeroOut });
            from.steps_to(&to, &nesting()).unwrap_err().to_string()
        };
        assert_eq!(
            reason(Unit::Record, entity("user")),
            "a guarantee for zero-out neighbours says nothing about zero-out neighbours of entities (user): a user may have \
             any number of records, and k of them cost k times as much"
        );
        assert!(reason(entity("device"), entity("user")).contains("any number of device entities"));
        assert!(
            reason(entity("user"), entity("site"))
                .contains("nothing says that each site lies within one user")
        );
        assert!(reason(entity("site"), entity("user")).contains("add within = [\"site\"]"));
    }

    #[test]
    fn nesting_follows_chains_and_ends_in_circles() {
        let circle = Nesting::new([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")]);
        assert!(circle.is_within("a", "d") && circle.is_within("b", "a") && !circle.is_within("d", "a"));
    }

    /// A path through in-place neighbours is excluded: it keeps each row's owner, and a guarantee
    /// that is not in place may not rely on that.
    #[test]
    fn a_detour_is_never_shorter() {
        let nesting = nesting();
        for (from, through) in all().flat_map(|from| all().map(move |through| (from.clone(), through))) {
            if through.neighbours == ReplaceOneInPlace && from.neighbours != ReplaceOneInPlace {
                continue;
            }
            for to in all() {
                let (Ok(first), Ok(second)) =
                    (from.steps_to(&through, &nesting), through.steps_to(&to, &nesting))
                else {
                    continue;
                };
                let direct = from.steps_to(&to, &nesting).expect("a detour proves that there is a way");
                assert!(direct <= first * second, "{from} to {to} through {through}");
            }
        }
    }
}
