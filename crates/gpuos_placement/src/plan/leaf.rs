//! The rank of a domain of the narrowest level for a gang with a share per node, without choosing
//! nodes in it.
//!
//! There are many such domains, and all that have room are compared. In most of them the nodes with room
//! are alike, or they are few: what [`super::select`] would take follows from their figures.
use super::Planner;
use super::bits;
use super::capacity;
use super::fabric::Span;
use super::gang::Sums;
use super::job::{Job, Rule};

/// Up to so many nodes that are not alike are put in order here.
const FEW: usize = 16;

/// A node with its figures: see [`super::capacity::Figure`].
#[derive(Clone, Copy, Default)]
struct Member {
    order: [u32; 3],
    ring: u32,
    lost: u32,
}

/// What the nodes that [`super::select::select`] would choose in the domain come to; `None` when that takes
/// choosing them.
pub(super) fn sums_of_leaf(
    planner: &mut Planner,
    job: &Job,
    level: usize,
    span: &Span,
) -> Option<Sums> {
    let plain = matches!(
        job.rule,
        Rule::BestFit | Rule::Backfill | Rule::Pack | Rule::Spread
    );
    let simple = plain && job.units.is_none() && job.required.is_empty() && !job.cost_first;
    if level > 0 || !simple || planner.gang.avoiding {
        return None;
    }
    capacity::rank(planner, job, job.unit);
    let index = &planner.state.now;
    let figures = &planner.capacity.ranks(job.unit).figures;
    let fit = &planner.capacity.fit;
    let nodes = bits::count(fit, span.start, span.end);
    let wanted = job.wanted(nodes);
    let slot = index.slot(bits::next(fit, span.start)?);
    let same = index.nodes(slot);
    let mut words = bits::words(span.start, span.end);
    let mut sums = Sums {
        nodes: wanted,
        ring: u32::MAX,
        spanned: 1,
        ..Sums::default()
    };
    if words.all(|(word, mask)| fit[word] & mask & !same[word] == 0) {
        let figure = figures[slot as usize];
        sums.add(figure.ring, figure.lost.saturating_mul(wanted));
        sums.speak_against(figure.order[0], wanted);
        return Some(sums);
    }
    if nodes as usize > FEW {
        return None;
    }
    let mut members = [Member::default(); FEW];
    let mut rings = [0; FEW];
    let mut len = 0;
    for (word, mask) in bits::words(span.start, span.end) {
        for at in bits::each(word, fit[word] & mask) {
            let figure = figures[index.slot(at) as usize];
            let member = Member {
                order: figure.order,
                ring: figure.ring,
                lost: figure.lost,
            };
            // They come by position: it decides among equals.
            let place = members[..len].partition_point(|other| other.order <= member.order);
            members.copy_within(place..len, place + 1);
            members[place] = member;
            rings[len] = member.ring;
            len += 1;
        }
    }
    rings[..len].sort_unstable();
    let worst = rings[len - wanted as usize];
    let fast = members[..len].iter().filter(|member| member.ring >= worst);
    for member in fast.take(wanted as usize) {
        sums.add(member.ring, member.lost);
        sums.speak_against(member.order[0], 1);
    }
    Some(sums)
}
