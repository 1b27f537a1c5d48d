//! All registered objects into a folder, and back.
//!
//! Each object has a file there, whose bytes are at the offsets that they have in the object, and what was never written is a hole; the list comes last. Where the file system
//! can have files share bytes, the files of the last save stay open, and the next save writes only what was written since: the rest is shared with them, also when
//! their folder is gone by then. Elsewhere all of it is read from where it lies: a copy from the last file would have to be read as well, and that file would take its room between saves.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::PoisonError;

use gpuos_memory::objects::{ObjectId, Span, Spot};

use crate::fabric::Fabric;
use crate::failure::{Failure, Why};
use crate::folder::{self, Folder, Saved};
use crate::listing::{self, Entry, LIST};
use crate::pages::Pages;
use crate::shared::{Saves, State};

/// Files of a save that stay open: those of the largest objects. Programs have descriptors for other things.
const MOST_OPEN: usize = 64;

fn file(text: impl Into<String>) -> Failure {
    Failure::new(Why::File, text)
}

/// What an error of a call on a file of a save says.
fn on<T>(name: &str, done: io::Result<T>) -> Result<T, Failure> {
    done.map_err(|error| file(format!("{name}: {error}")))
}

/// An object that is saved, as it was when the save began.
struct Part {
    id: ObjectId,
    entry: Entry,
    /// What was written ever, and since the last save that has it.
    ever: Vec<Span>,
    since: Vec<Span>,
}

/// What a save has made so far, and memory for an extent on its way.
struct Making<'a> {
    folder: &'a Folder,
    names: &'a mut Vec<String>,
    counts: Saves,
    pages: &'a mut Pages,
}

/// The parts of an object that were written after a time; whole extents.
fn spans(state: &State, id: ObjectId, since: u64) -> Result<Vec<Span>, Failure> {
    let mut all = Vec::new();
    let mut from = 0;
    while let Some(span) = state.objects.written(id, since, from)? {
        from = span.offset + span.length;
        all.push(span);
    }
    Ok(all)
}

fn bytes(spans: &[Span]) -> u64 {
    spans.iter().map(|span| span.length).sum()
}

/// The objects of a save: their names and sizes, in the order in which they were made.
///
/// # Errors
/// There is no such folder, or no whole save in it.
pub fn saved(folder: &Path) -> Result<Vec<(String, u64)>, Failure> {
    let entries = entries(folder)?.1.into_iter();
    Ok(entries.map(|entry| (entry.name, entry.bytes)).collect())
}

fn entries(path: &Path) -> Result<(Folder, Vec<Entry>), Failure> {
    let shown = path.display().to_string();
    let folder = on(&shown, Folder::open(path))?;
    let list = match folder.read(LIST) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(file(format!(
                "{shown}: there is no {LIST} in it, so it has no whole save"
            )));
        }
        list => on(LIST, list)?,
    };
    let text = on(LIST, folder::read_all(&list, listing::MOST))?;
    let entries = listing::entries(&text).map_err(|why| file(format!("{shown}: {why}")))?;
    Ok((folder, entries))
}

impl Fabric {
    /// Saves all registered objects into a folder, which is made if it is not there; files of an earlier save must not be. What is being written meanwhile, by calls or work of the GPU, is
    /// saved as it is at some moment, and once more by the next save.
    ///
    /// # Errors
    /// A file cannot be written, or bytes are lost: what was made is removed, and the next save writes what was written since the last that succeeded.
    pub fn save(&self, folder: &Path) -> Result<(), Failure> {
        // A child is told before it waits for a lock that nobody gives back there.
        drop(self.lock()?);
        let kept = self.shared.saved.lock();
        let mut kept = kept.unwrap_or_else(PoisonError::into_inner);
        let shown = folder.display().to_string();
        let into = on(&shown, Folder::make(folder))?;
        let mut names = Vec::new();
        let done = self.with_pages(|pages| {
            let mut making = Making {
                folder: &into,
                names: &mut names,
                counts: Saves::default(),
                pages,
            };
            let files = self.save_all(&mut making, &kept)?;
            Ok((files, making.counts))
        });
        match done {
            Ok((files, counts)) => {
                *kept = files;
                // It is saved, also if nothing moves any more from now on.
                self.shared.lock().saves.add(counts);
                Ok(())
            }
            Err(mut failure) => {
                for name in names.iter().rev() {
                    into.remove(name);
                }
                if into.made {
                    // If others have put something there it stays.
                    let _ = std::fs::remove_dir(folder);
                }
                failure.text = format!("{shown}: {}", failure.text);
                Err(failure)
            }
        }
    }

    fn save_all(
        &self,
        making: &mut Making<'_>,
        last: &HashMap<ObjectId, Saved>,
    ) -> Result<HashMap<ObjectId, Saved>, Failure> {
        let (time, parts) = self.parts(last)?;
        let mut files = Vec::new();
        for part in parts.iter().filter(|part| !part.entry.mapped) {
            let name = listing::file_name(&part.entry.name).map_err(file)?;
            let made = on(&name, making.folder.create(&name))?;
            making.names.push(name.clone());
            on(&name, made.set_len(part.entry.bytes))?;
            let shared = match last.get(&part.id) {
                None => false,
                Some(last) => self.save_shared(making, part, last, &name, &made)?,
            };
            if !shared {
                self.save_spans(making, part, &part.ever, (&name, &made))?;
            }
            on(&name, folder::close(made))?;
            files.push((part, name));
        }
        let list = on(LIST, making.folder.create(LIST))?;
        making.names.push(LIST.to_string());
        let entries: Vec<Entry> = parts.iter().map(|part| part.entry.clone()).collect();
        on(
            LIST,
            list.write_all_at(listing::text(&entries).as_bytes(), 0),
        )?;
        on(LIST, folder::close(list))?;
        making.counts.times = 1;
        Ok(kept(making.folder, files, time))
    }

    /// The time of now, and what is registered.
    fn parts(&self, last: &HashMap<ObjectId, Saved>) -> Result<(u64, Vec<Part>), Failure> {
        let registered = self.registered()?;
        let mut state = self.lock()?;
        let time = state.objects.now();
        let mut parts = Vec::new();
        for (id, name) in registered {
            // One that was freed since is as one that was freed before.
            let Some(place) = state.places.get(&id) else {
                continue;
            };
            let entry = Entry {
                mapped: place.home.is_some(),
                bytes: state.objects.bytes(id)?,
                name,
            };
            parts.push(Part {
                ever: spans(&state, id, 0)?,
                since: match last.get(&id) {
                    None => Vec::new(),
                    Some(last) => spans(&state, id, last.time)?,
                },
                id,
                entry,
            });
        }
        Ok((time, parts))
    }

    /// Writes what was written since the last save, and has the file share the rest with that of the last. `false`: it cannot, and the file is empty again.
    fn save_shared(
        &self,
        making: &mut Making<'_>,
        part: &Part,
        last: &Saved,
        name: &str,
        to: &File,
    ) -> Result<bool, Failure> {
        let size = part.entry.bytes;
        let mut from = 0;
        let end = Span {
            offset: size,
            length: 0,
        };
        let mut done = last.is_as_it_was();
        for span in part.since.iter().chain([&end]) {
            if done && span.offset > from {
                done = last.share(to, from, span.offset - from).is_ok();
            }
            from = span.offset + span.length;
        }
        if !done {
            on(name, to.set_len(0))?;
            on(name, to.set_len(size))?;
            return Ok(false);
        }
        self.save_spans(making, part, &part.since, (name, to))?;
        making.counts.shared += bytes(&part.ever).saturating_sub(bytes(&part.since));
        Ok(true)
    }

    /// Writes parts of an object.
    fn save_spans(
        &self,
        making: &mut Making<'_>,
        part: &Part,
        spans: &[Span],
        (name, to): (&str, &File),
    ) -> Result<(), Failure> {
        let extent = self.shared.extent;
        for span in spans {
            let end = span.offset + span.length;
            for index in span.offset / extent..end.div_ceil(extent) {
                let offset = index * extent;
                let length = extent.min(end - offset);
                let bytes = &mut making.pages.bytes_mut()[..length as usize];
                let spot = self
                    .read_extent(part.id, index, 0, bytes)
                    .map_err(|mut failure| {
                        failure.text = format!("object {:?}: {}", part.entry.name, failure.text);
                        failure
                    })?;
                on(name, to.write_all_at(bytes, offset))?;
                making.counts.bytes += length;
                if let Spot::Hbm(_) = spot {
                    making.counts.near += length;
                }
            }
        }
        Ok(())
    }

    /// Has memory for an extent on its way.
    fn with_pages<T>(
        &self,
        body: impl FnOnce(&mut Pages) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let no_memory = |error| Failure::new(Why::Full, format!("memory for an extent: {error}"));
        let mut pages = self.shared.staging().map_err(no_memory)?;
        let done = body(&mut pages);
        self.shared.stage(pages);
        done
    }

    /// Loads all registered objects from a folder, by way of GPU memory. What the save has and what is registered have to be the same: names, sizes, and what is mapped. Nothing has changed
    /// where that is not so, or a file is not as long as its object.
    ///
    /// # Errors
    /// There is no such save in the folder, a file cannot be read, or there is no room.
    pub fn load(&self, folder: &Path) -> Result<(), Failure> {
        drop(self.lock()?);
        let (from, saved) = entries(folder)?;
        let shown = folder.display();
        let (_, parts) = self.parts(&HashMap::new())?;
        let by_name = |entry: Entry| (entry.name.clone(), entry);
        let mut saved: HashMap<_, _> = saved.into_iter().map(by_name).collect();
        for part in &parts {
            check(part, saved.remove(&part.entry.name).as_ref())
                .map_err(|why| file(format!("{shown}: object {:?} {why}", part.entry.name)))?;
            if !part.entry.mapped {
                opened(&from, &part.entry)?;
            }
        }
        if let Some(name) = saved.keys().min() {
            return Err(file(format!(
                "{shown}: object {name:?} was saved, and none of this name is registered"
            )));
        }
        let mut all = parts.iter().filter(|part| !part.entry.mapped);
        let done =
            self.with_pages(|pages| all.try_for_each(|part| self.load_part(&from, part, pages)));
        done.map_err(|mut failure| {
            failure.text = format!(
                "{shown}: {}; objects are loaded in part: load all of them again, or begin anew",
                failure.text
            );
            failure
        })
    }

    fn load_part(&self, from: &Folder, part: &Part, pages: &mut Pages) -> Result<(), Failure> {
        let (name, source) = opened(from, &part.entry)?;
        let (extent, size) = (self.shared.extent, part.entry.bytes);
        let mut written = part.ever.iter().peekable();
        let mut next = on(&name, folder::next_bytes(&source, 0))?;
        for index in 0..size.div_ceil(extent) {
            let offset = index * extent;
            let length = extent.min(size - offset);
            let bytes = &mut pages.bytes_mut()[..length as usize];
            if next.is_some_and(|next| next < offset) {
                next = on(&name, folder::next_bytes(&source, offset))?;
            }
            if next.is_some_and(|next| next < offset + length) {
                on(&name, source.read_exact_at(bytes, offset))?;
            } else {
                bytes.fill(0);
            }
            while written
                .next_if(|span| span.offset + span.length <= offset)
                .is_some()
            {}
            let zeros = written.peek().is_none_or(|span| span.offset > offset);
            // What is zeros already stays without room.
            if zeros && is_zeros(bytes) {
                continue;
            }
            self.write(part.id, offset, bytes)?;
        }
        Ok(())
    }
}

fn is_zeros(bytes: &[u8]) -> bool {
    let zeros = |chunk: &[u8]| chunk.iter().fold(0, |all, byte| all | byte) == 0;
    bytes.chunks(4096).all(zeros)
}

fn check(part: &Part, entry: Option<&Entry>) -> Result<(), String> {
    let own = &part.entry;
    let Some(entry) = entry else {
        return Err("is registered, and was not saved there".to_string());
    };
    let kind = |mapped| {
        if mapped {
            "a mapped file"
        } else {
            "no mapped file"
        }
    };
    if entry.mapped != own.mapped {
        let (was, is) = (kind(entry.mapped), kind(own.mapped));
        return Err(format!("was {was} when it was saved, and is {is}"));
    }
    if entry.bytes != own.bytes {
        return Err(format!(
            "had {} bytes when it was saved, and has {}",
            entry.bytes, own.bytes
        ));
    }
    Ok(())
}

/// The file of an object, which is as long as that.
fn opened(folder: &Folder, entry: &Entry) -> Result<(String, File), Failure> {
    let name = listing::file_name(&entry.name).map_err(file)?;
    let found = on(&name, folder.read(&name))?;
    let length = on(&name, found.metadata())?.len();
    if length != entry.bytes {
        return Err(file(format!(
            "{name} has {length} bytes, and its object {}: it is damaged, or no file of this save",
            entry.bytes
        )));
    }
    Ok((name, found))
}

/// The files of a save that the next one shares bytes with; none where the file system cannot do that.
fn kept(folder: &Folder, mut files: Vec<(&Part, String)>, time: u64) -> HashMap<ObjectId, Saved> {
    let shares = |list: File| folder.shares(&list);
    if !folder.read(LIST).is_ok_and(shares) {
        return HashMap::new();
    }
    files.sort_by_key(|(part, _)| Reverse(part.entry.bytes));
    files.truncate(MOST_OPEN);
    let open = |(part, name): (&Part, String)| {
        let file = folder.read(&name).ok()?;
        Some((part.id, Saved::new(file, time).ok()?))
    };
    files.into_iter().filter_map(open).collect()
}
