//! What is kept of past decisions, so that the next one of the same form looks only at what has
//! changed since.
//!
//! For each of the last forms of request there is a [`Tree`] of ranks: the best of every group of
//! nodes and of every domain. Each node that has changed costs one group and the way up from it. What is
//! kept follows from the nodes' states alone, so it makes no difference to the choice, only to
//! what it costs. Clusters that are small enough to be looked at whole keep nothing.
use super::bits;
use super::cache_gang::Layer;
use super::cache_single::Single;
use super::fabric::FabricIndex;
use super::gpus::ValueModel;
use super::job::{Job, Rule};
use super::state::State;
use super::tree::Tree;

/// Clusters of fewer nodes with GPUs keep nothing unless they are told to.
const WORTHWHILE: u32 = 512;
/// Forms that are kept, of jobs on one node and of gangs.
const ONES: usize = 48;
const GANGS: usize = 32;
/// A form is kept when it comes again within so many others: what comes once would only cost.
const RECENT: usize = 64;
/// Once all tables are taken, a form takes the place of another one after so many questions at the
/// earliest: where more forms come in turns than there are tables, most are answered without.
const PAUSE: u64 = 32;

/// All of a job that the ranks of places hang on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Form {
    unit: u32,
    units: Option<u32>,
    /// Fewest and most nodes; 0 for a job on one node.
    nodes: (u32, u32),
    rule: Rule,
    /// Learned, whole, cost first, worth by the mix, dealt.
    flags: [bool; 5],
    cpus_per_node: u32,
    cpus_per_gpu: u32,
    memory_mib: u64,
}

impl Form {
    fn of(job: &Job, nodes: (u32, u32)) -> Form {
        Form {
            unit: job.unit,
            units: job.units,
            nodes,
            rule: job.rule,
            flags: [
                job.learned,
                job.whole,
                job.cost_first,
                job.worth == ValueModel::Learned,
                job.dealt,
            ],
            cpus_per_node: job.cpus_per_node,
            cpus_per_gpu: job.cpus_per_gpu,
            memory_mib: job.memory_mib,
        }
    }

    /// A number that two forms rarely have in common.
    fn print(&self) -> u64 {
        let flags = self
            .flags
            .iter()
            .fold(1, |all, &flag| all << 1 | u64::from(flag));
        let units = self.units.map_or(0, |units| u64::from(units) + 1);
        let fields = [
            u64::from(self.unit) << 32 | u64::from(self.nodes.0),
            units << 24 ^ u64::from(self.nodes.1),
            u64::from(self.cpus_per_node) << 32 | u64::from(self.cpus_per_gpu),
            self.memory_mib,
            flags << 8 | self.rule as u64,
        ];
        fields.iter().fold(0x9e37_79b9_7f4a_7c15, |print, field| {
            (print ^ field)
                .wrapping_mul(0x2545_f491_4f6c_dd1d)
                .rotate_left(29)
        })
    }
}

/// The ranks of one form.
#[derive(Debug)]
pub struct Table<T> {
    form: Option<Form>,
    pub ranks: T,
}

/// The forms of one kind.
#[derive(Debug)]
pub struct Forms<T> {
    /// [`Form::print`] of each, and when it was last asked for; side by side, to be searched fast.
    prints: Vec<u64>,
    used: Vec<u64>,
    tables: Vec<Table<T>>,
    clock: u64,
    /// When a form took the place of another one last.
    replaced: u64,
    recent: Vec<u64>,
    oldest: usize,
}

impl<T> Forms<T> {
    fn new(count: usize, table: impl Fn() -> T) -> Forms<T> {
        let table = |_| Table {
            form: None,
            ranks: table(),
        };
        Forms {
            prints: vec![0; count],
            used: vec![0; count],
            tables: (0..count).map(table).collect(),
            clock: 0,
            replaced: 0,
            recent: vec![0; RECENT],
            oldest: 0,
        }
    }

    fn forget(&mut self) {
        self.tables.iter_mut().for_each(|table| table.form = None);
        self.used.fill(0);
    }

    /// The number of a form's table, and whether the table was of another form before; `None` when the
    /// form has not been asked for recently.
    fn find(&mut self, form: Form) -> Option<(usize, bool)> {
        let print = form.print();
        self.clock += 1;
        let mut same = self
            .prints
            .iter()
            .enumerate()
            .filter(|&(_, &of)| of == print);
        if let Some((at, _)) = same.find(|&(at, _)| self.tables[at].form == Some(form)) {
            self.used[at] = self.clock;
            return Some((at, false));
        }
        self.admit(form, print)
    }

    #[cold]
    fn admit(&mut self, form: Form, print: u64) -> Option<(usize, bool)> {
        if !self.recent.contains(&print) {
            self.recent[self.oldest] = print;
            self.oldest = (self.oldest + 1) % RECENT;
            return None;
        }
        let at = (0..self.used.len()).min_by_key(|&at| self.used[at])?;
        if self.tables[at].form.is_some() {
            if self.clock < self.replaced + PAUSE {
                return None;
            }
            self.replaced = self.clock;
        }
        (self.prints[at], self.used[at]) = (print, self.clock);
        self.tables[at].form = Some(form);
        Some((at, true))
    }
}

/// Ranks of one form at the version of the state that they are of.
#[derive(Debug)]
pub struct Ranks<T> {
    pub version: Option<u64>,
    pub by_node: Vec<T>,
}

impl<T: Clone + Default> Ranks<T> {
    pub fn new(knots: usize) -> Ranks<T> {
        Ranks {
            version: None,
            by_node: vec![T::default(); knots],
        }
    }
}

/// What is kept.
#[derive(Debug)]
pub struct DecisionCache {
    pub tree: Tree,
    /// Knots that are to be looked at; none between decisions.
    pub dirty: Vec<u64>,
    pub ones: Forms<Single>,
    /// By level.
    pub gangs: Forms<Vec<Ranks<Layer>>>,
    /// By level: whether all nodes are in a domain of it.
    pub full: Vec<bool>,
}

impl DecisionCache {
    /// For a cluster that is large enough, or where that is wanted.
    pub fn new(fabric: &FabricIndex, wanted: bool) -> Option<Box<DecisionCache>> {
        if fabric.len() == 0 || !wanted && fabric.len() < WORTHWHILE {
            return None;
        }
        let tree = Tree::new(fabric);
        let knots = tree.len();
        let layers = || {
            let layer = |level| Ranks::new(knots - tree.first(level));
            (0..=fabric.levels).map(layer).collect()
        };
        let full = |level| bits::count_all(fabric.inside(level)) == fabric.len();
        Some(Box::new(DecisionCache {
            dirty: vec![0; bits::words_for(knots)],
            ones: Forms::new(ONES, || Single::new(knots, fabric.len())),
            gangs: Forms::new(GANGS, layers),
            full: (0..=fabric.levels).map(full).collect(),
            tree,
        }))
    }

    /// What GPUs are worth has changed.
    pub fn forget(&mut self) {
        self.ones.forget();
        self.gangs.forget();
    }

    /// The table of a job on one node.
    pub fn one(&mut self, job: &Job) -> Option<usize> {
        let (at, anew) = self.ones.find(Form::of(job, (0, 0)))?;
        if anew {
            self.ones.tables[at].ranks.ranks.version = None;
        }
        Some(at)
    }

    /// The table of a gang.
    pub fn gang(&mut self, job: &Job) -> Option<usize> {
        let (at, anew) = self.gangs.find(Form::of(job, (job.min, job.max)))?;
        if anew {
            let layers = self.gangs.tables[at].ranks.iter_mut();
            layers.for_each(|layer| layer.version = None);
        }
        Some(at)
    }
}

impl<T> Forms<T> {
    /// The ranks of a form, by the number of its table.
    pub fn ranks(&mut self, table: usize) -> &mut T {
        &mut self.tables[table].ranks
    }
}

/// The positions that have changed since a version; `None` when all may have.
pub fn changed(state: &State, version: Option<u64>) -> Option<&[u32]> {
    let changed = state.changed_since(version?)?;
    // Beyond that a look at each is cheaper than to find out which.
    (changed.len() < state.positions() / 2).then_some(changed)
}
