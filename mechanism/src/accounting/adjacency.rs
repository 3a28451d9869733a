//! Which two streams are hard to tell apart, and what a guarantee about some pairs says about others.
//!
//! A guarantee is about pairs of streams: an [`Adjacency`] names them by their unit and their neighbours. Guarantees
//! about the same pairs compose ([`composition`](super::composition)). Others first have to be
//! turned into guarantees about the same pairs. Write `R → S: f` when every mechanism whose squared, noise-scaled distance is at
//! most μ² for all pairs of R has distance at most (fμ)² for all pairs of S. Distances obey the triangle inequality, so f is
//! the number of steps of R that lead from one stream of a pair of S to the other (group privacy: Dong, Roth & Su 2022,
//! Theorem 2.14, gives fμ-GDP).
//!
//! | from | to | f | why |
//! |---|---|---|---|
//! | any | the same | 1 | |
//! | replace-one | in place | 1 | other values in the same cell are another record |
//! | replace-one | zero-out | 1 | a blank is one of the things that a record may turn into |
//! | zero-out | replace-one, in place | 2 | one record is blanked, then the other takes the place of the blank |
//! | in place | replace-one, zero-out | none | counts are released exactly, so a record that comes, goes or moves is seen |
//! | an entity's records | one record | 1 | the entity's other records are the same in both streams |
//! | one record | an entity's records | none | k records cost kμ, and nothing bounds k |
//!
//! What discrete noise adds to δ does not grow with f: it is the distance between the noise that runs and its ideal, whatever the data.

use crate::sensitivity::Neighbours;
use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

/// What of a stream is protected as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// One record.
    Record,
    /// All records of an entity.
    Entity,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unit::Record => "record",
            Unit::Entity => "entity",
        })
    }
}

/// Which two streams are hard to tell apart: those that differ in one unit, as neighbours do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Adjacency {
    /// What is protected as a whole.
    pub unit: Unit,
    /// How it may differ.
    pub neighbours: Neighbours,
}

/// A guarantee that says nothing about the pairs of streams that are asked for.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a guarantee for {found} says nothing about {wanted}: {reason}")]
pub struct Incomparable {
    /// What the guarantee is about.
    pub found: Adjacency,
    /// What it was asked to be about.
    pub wanted: Adjacency,
    /// Why it is not.
    pub reason: &'static str,
}

impl Adjacency {
    /// How many steps between streams of this adjacency lead from one stream of a `wanted` pair to the other: a
    /// μ-private mechanism for this one is (steps·μ)-private for that one.
    ///
    /// # Errors
    /// [`Incomparable`] if no number of steps is enough for all pairs.
    pub fn steps_to(self, wanted: Adjacency) -> Result<u32, Incomparable> {
        let none = |reason| Err(Incomparable { found: self, wanted, reason });
        if (self.unit, wanted.unit) == (Unit::Record, Unit::Entity) {
            return none("an entity may have any number of records, and k of them cost k times as much");
        }
        match (self.neighbours, wanted.neighbours) {
            (found, wanted) if found == wanted => Ok(1),
            (Neighbours::ReplaceOne, _) => Ok(1),
            (Neighbours::ZeroOut, _) => Ok(2),
            (Neighbours::ReplaceOneInPlace, _) => {
                none("counts were released exactly, so whether a record came, went or moved is not hidden")
            }
        }
    }
}

impl fmt::Display for Adjacency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unit {
            Unit::Record => write!(f, "{} neighbours", self.neighbours),
            Unit::Entity => write!(f, "{} neighbours of entities", self.neighbours),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Neighbours::{ReplaceOne, ReplaceOneInPlace, ZeroOut};

    fn all() -> impl Iterator<Item = Adjacency> {
        let units = [Unit::Record, Unit::Entity];
        units.into_iter().flat_map(|unit| {
            [ReplaceOne, ReplaceOneInPlace, ZeroOut].map(|neighbours| Adjacency { unit, neighbours })
        })
    }

    #[test]
    fn every_pair_of_neighbours_is_converted_or_refused() {
        let check = |from, to, expected: Option<u32>| {
            for unit in [Unit::Record, Unit::Entity] {
                let [from, to] = [from, to].map(|neighbours| Adjacency { unit, neighbours });
                assert_eq!(from.steps_to(to).ok(), expected, "{from} to {to}");
            }
        };
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

    #[test]
    fn a_record_is_protected_with_its_entity_and_not_the_other_way_round() {
        let [record, entity] =
            [Unit::Record, Unit::Entity].map(|unit| Adjacency { unit, neighbours: ZeroOut });
        assert_eq!(entity.steps_to(record), Ok(1));
        let refused = record.steps_to(entity).unwrap_err().to_string();
        assert_eq!(
            refused,
            "a guarantee for zero-out neighbours says nothing about zero-out neighbours of entities: an entity may have \
             any number of records, and k of them cost k times as much"
        );
    }

    #[test]
    fn a_detour_is_never_shorter() {
        for (from, through) in all().flat_map(|from| all().map(move |through| (from, through))) {
            for to in all() {
                let (Ok(first), Ok(second)) = (from.steps_to(through), through.steps_to(to)) else {
                    continue;
                };
                let direct = from.steps_to(to).expect("a detour proves that there is a way");
                assert!(direct <= first * second, "{from} to {to} through {through}");
            }
        }
    }
}
