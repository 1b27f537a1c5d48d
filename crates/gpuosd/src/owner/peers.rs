//! What the other nodes of jobs give to do.

use super::Owner;
use crate::peers::Report;
use crate::queue::Release;

impl Owner {
    pub(super) fn reported(&mut self, report: Report) {
        match report {
            Report::View(peers, trouble) => {
                self.peers = peers;
                self.trouble("peers", trouble);
            }
            Report::Note(text) => self.note(text, None, None),
            Report::Down(job) => {
                self.releases.retain(|release| release.job != job);
                self.releases.push(Release::of(job, false));
            }
        }
    }
}
