//! Linear queries over the cells of a histogram.

use super::QueryError;
use nalgebra::DMatrix;

/// Largest number of entries of a workload that is written out.
const MAX_ENTRIES: usize = 40_000_000;

/// A workload of linear queries.
#[derive(Clone, Debug, PartialEq)]
pub enum QueryWorkload {
    /// Every single cell.
    Cells(usize),
    /// The sums of the first 1, 2, …, n cells.
    Prefixes(usize),
    /// The sum of every range of cells.
    AllRanges(usize),
    /// Any queries, one in each row.
    Matrix(DMatrix<f64>),
}

/// A query as text: `3`, `1-3`, or `query 3` for the rows of a matrix. Cells count from 1.
pub type QueryName = String;

impl QueryWorkload {
    /// Returns the marginals of a table with these numbers of values of each attribute: the sums
    /// over all other attributes, for each set of `order` attributes and each combination of their
    /// values. The last attribute varies fastest in the order of cells.
    ///
    /// # Errors
    /// [`QueryError::Marginals`] for an order of 0 or more than the attributes, or sizes of 0;
    /// [`QueryError::TooLarge`] for a workload that is too large to write out.
    pub fn marginals(sizes: &[usize], order: usize) -> Result<Self, QueryError> {
        let bad = || QueryError::Marginals { order, attributes: sizes.len() };
        if order == 0 || order > sizes.len() || sizes.contains(&0) || sizes.len() > 20 {
            return Err(bad());
        }
        let cells = sizes.iter().try_fold(1usize, |all, size| all.checked_mul(*size)).ok_or_else(bad)?;
        let value = |cell: usize, attribute: usize| {
            cell / sizes[attribute + 1..].iter().product::<usize>() % sizes[attribute]
        };
        let mut rows = Vec::new();
        for members in sets(sizes.len(), order) {
            let combinations: usize = members.iter().map(|a| sizes[*a]).product();
            let of_cell =
                |cell: usize| members.iter().fold(0, |index, a| index * sizes[*a] + value(cell, *a));
            if (rows.len() + combinations).saturating_mul(cells) > MAX_ENTRIES {
                return Err(QueryError::TooLarge { queries: rows.len() + combinations, cells });
            }
            rows.extend((0..combinations).map(|index| {
                (0..cells).map(|cell| f64::from(u8::from(of_cell(cell) == index))).collect::<Vec<_>>()
            }));
        }
        Ok(Self::Matrix(DMatrix::from_row_slice(rows.len(), cells, &rows.concat())))
    }

    /// Names the queries of [`marginals`](Self::marginals): `1=2 3=1` is the number of records with
    /// the second value of the first attribute and the first value of the third.
    pub fn marginal_names(sizes: &[usize], order: usize) -> impl Iterator<Item = QueryName> + '_ {
        sets(sizes.len(), order).flat_map(move |members| {
            let combinations: usize = members.iter().map(|a| sizes[*a]).product();
            (0..combinations).map(move |index| {
                let mut rest = index;
                let mut parts: Vec<String> = Vec::with_capacity(members.len());
                for attribute in members.iter().rev() {
                    parts.push(format!("{}={}", attribute + 1, rest % sizes[*attribute] + 1));
                    rest /= sizes[*attribute];
                }
                parts.reverse();
                parts.join(" ")
            })
        })
    }

    /// Number of cells n.
    pub fn cells(&self) -> usize {
        match self {
            Self::Cells(n) | Self::Prefixes(n) | Self::AllRanges(n) => *n,
            Self::Matrix(matrix) => matrix.ncols(),
        }
    }

    /// Number of queries.
    pub fn queries(&self) -> usize {
        match self {
            Self::Cells(n) | Self::Prefixes(n) => *n,
            Self::AllRanges(n) => n * (n + 1) / 2,
            Self::Matrix(matrix) => matrix.nrows(),
        }
    }

    /// An entry of V = WᵀW: the number of queries that contain both cells. Not for a matrix.
    pub(super) fn shared(&self, i: usize, j: usize) -> f64 {
        let (n, first, last) = (self.cells(), i.min(j), i.max(j));
        match self {
            Self::Cells(_) => f64::from(u8::from(i == j)),
            Self::Prefixes(_) => (n - last) as f64,
            _ => ((first + 1) * (n - last)) as f64,
        }
    }

    /// Ranges of cells, from 0, both ends within.
    fn ranges(&self) -> Box<dyn Iterator<Item = (usize, usize)> + '_> {
        match self {
            Self::Cells(n) => Box::new((0..*n).map(|cell| (cell, cell))),
            Self::Prefixes(n) => Box::new((0..*n).map(|cell| (0, cell))),
            Self::AllRanges(n) => {
                Box::new((0..*n).flat_map(move |first| (first..*n).map(move |last| (first, last))))
            }
            Self::Matrix(_) => Box::new(std::iter::empty()),
        }
    }

    /// The name of each query.
    pub fn names(&self) -> Box<dyn Iterator<Item = QueryName> + '_> {
        if let Self::Matrix(matrix) = self {
            return Box::new((1..=matrix.nrows()).map(|row| format!("query {row}")));
        }
        Box::new(self.ranges().map(|(first, last)| {
            if first == last { format!("{}", first + 1) } else { format!("{}-{}", first + 1, last + 1) }
        }))
    }

    /// The answers to all queries from values of the cells.
    pub fn answers(&self, cells: &[f64]) -> Vec<f64> {
        if let Self::Matrix(matrix) = self {
            return (matrix * nalgebra::DVector::from_column_slice(cells)).as_slice().to_vec();
        }
        let mut sums = vec![0.0];
        sums.extend(cells.iter().scan(0.0, |sum, cell| {
            *sum += cell;
            Some(*sum)
        }));
        self.ranges().map(|(first, last)| sums[last + 1] - sums[first]).collect()
    }
}

/// All sets of this many attributes, each in ascending order.
fn sets(attributes: usize, order: usize) -> impl Iterator<Item = Vec<usize>> {
    (0u32..1 << attributes)
        .filter(move |set| set.count_ones() as usize == order)
        .map(move |set| (0..attributes).filter(|a| set >> a & 1 == 1).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    impl QueryWorkload {
        /// All queries, one in each row.
        pub(crate) fn written_out(&self) -> DMatrix<f64> {
            if let Self::Matrix(matrix) = self {
                return matrix.clone();
            }
            let ranges: Vec<_> = self.ranges().collect();
            let inside = |i: usize, j: usize| f64::from(u8::from(ranges[i].0 <= j && j <= ranges[i].1));
            DMatrix::from_fn(ranges.len(), self.cells(), inside)
        }
    }

    #[test]
    fn ranges_and_matrices_agree() {
        let cells = [3.0, 1.0, 4.0, 1.5];
        for workload in [QueryWorkload::Cells(4), QueryWorkload::Prefixes(4), QueryWorkload::AllRanges(4)] {
            let matrix = workload.written_out();
            let written = QueryWorkload::Matrix(matrix.clone());
            let counts = [matrix.nrows(), workload.names().count(), workload.answers(&cells).len()];
            assert_eq!(counts, [workload.queries(); 3]);
            assert_eq!(workload.answers(&cells), written.answers(&cells));
            assert_eq!(matrix.tr_mul(&matrix), DMatrix::from_fn(4, 4, |i, j| workload.shared(i, j)));
        }
    }

    #[test]
    fn marginals_sum_over_the_other_attributes() {
        let cells: Vec<f64> = (0..6).map(f64::from).collect();
        let answers = |order| QueryWorkload::marginals(&[2, 3], order).unwrap().answers(&cells);
        assert_eq!(answers(1), [3.0, 12.0, 3.0, 5.0, 7.0]);
        assert_eq!(answers(2), cells);
        let names = |order| QueryWorkload::marginal_names(&[2, 3], order).collect::<Vec<_>>();
        assert_eq!(names(1), ["1=1", "1=2", "2=1", "2=2", "2=3"]);
        assert_eq!(names(2), ["1=1 2=1", "1=1 2=2", "1=1 2=3", "1=2 2=1", "1=2 2=2", "1=2 2=3"]);
        for (sizes, order) in [(&[2, 3][..], 0), (&[2, 3], 3), (&[2, 0], 1)] {
            assert!(matches!(QueryWorkload::marginals(sizes, order), Err(QueryError::Marginals { .. })));
        }
        assert!(matches!(QueryWorkload::marginals(&[8000, 2], 1), Err(QueryError::TooLarge { .. })));
    }
}
