//! The screen of `gpuos top`: what is drawn, and what keys do. No terminal here: drawing is into any buffer.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as Drawn, Table, TableState, Wrap};

use super::board::Board;
use super::table::{Kind, Pick, Row, Tone, rows, summary};

/// How to quit comes first, and all of it fits into 80 columns.
const HELP: &str =
    "q: quit  1-6: table  ↑↓ PgUp/Dn: move  s: sort  r: reverse  /: filter  p: pause";

/// What the screen shows of the board.
#[derive(Clone, Debug)]
pub struct View {
    kind: Kind,
    pick: Pick,
    /// The filter is being written.
    writing: bool,
    /// Nothing is asked anew.
    pub paused: bool,
    state: TableState,
    /// Rows that the table has, and lines that the screen has for them, when drawn last.
    seen: (usize, usize),
    colour: bool,
}

/// As many of the parts between `; ` as there is room for: half a number is a wrong one.
fn whole_parts(line: &str, width: usize) -> &str {
    let ends = line.match_indices("; ").map(|(at, _)| at);
    let fits = |at: &usize| line[..*at].chars().count() <= width;
    ends.chain([line.len()])
        .filter(fits)
        .last()
        .map_or(line, |at| &line[..at])
}

/// What a key asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Another drawing.
    Draw,
    /// The end.
    Quit,
}

impl View {
    /// The GPUs' table.
    pub fn new(pick: Pick, colour: bool) -> View {
        View {
            kind: Kind::Gpus,
            pick,
            writing: false,
            paused: false,
            state: TableState::default().with_selected(0),
            seen: (0, 0),
            colour,
        }
    }

    /// A key was pressed.
    pub fn key(&mut self, key: KeyEvent) -> Command {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Command::Quit;
        }
        if self.writing {
            match key.code {
                KeyCode::Enter => self.writing = false,
                KeyCode::Esc => {
                    self.writing = false;
                    self.pick.filter.clear();
                }
                KeyCode::Backspace => drop(self.pick.filter.pop()),
                KeyCode::Char(c) => self.pick.filter.push(c),
                _ => {}
            }
            self.state.select(Some(0));
            return Command::Draw;
        }
        let (count, page) = self.seen;
        let at = self.state.selected().unwrap_or(0);
        let select = match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Command::Quit,
            KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => at + 1,
            KeyCode::PageUp => at.saturating_sub(page),
            KeyCode::PageDown => at + page,
            KeyCode::Home => 0,
            KeyCode::End => count,
            KeyCode::Char('r') => {
                self.pick.reverse = !self.pick.reverse;
                0
            }
            KeyCode::Char('s') => {
                self.sort_on();
                0
            }
            KeyCode::Char('/') => {
                self.writing = true;
                0
            }
            KeyCode::Char('p') => {
                self.paused = !self.paused;
                at
            }
            KeyCode::Tab | KeyCode::BackTab => {
                let back = Kind::ALL.len() - 1;
                let step = if key.code == KeyCode::Tab { 1 } else { back };
                self.kind = Kind::ALL[(self.kind as usize + step) % Kind::ALL.len()];
                0
            }
            KeyCode::Char(c @ '1'..='6') => {
                self.kind = Kind::ALL[c as usize - '1' as usize];
                0
            }
            _ => at,
        };
        self.state.select(Some(select.min(count.saturating_sub(1))));
        Command::Draw
    }

    /// Sorts by the next column; after the last by none.
    fn sort_on(&mut self) {
        let headings = self.kind.headings();
        let now = self
            .pick
            .sort
            .as_ref()
            .and_then(|name| self.kind.column(name));
        let next = headings.get(now.map_or(0, |column| column + 1));
        self.pick.sort = next.map(|heading| heading.to_string());
    }

    fn style(&self, tone: Tone) -> Style {
        match tone {
            Tone::Bad if self.colour => Style::new().fg(Color::Red),
            Tone::Warn if self.colour => Style::new().fg(Color::Yellow),
            // Without colour, what is out still stands out.
            Tone::Bad => Style::new().add_modifier(Modifier::BOLD),
            _ => Style::new(),
        }
    }

    /// Draws the board.
    pub fn draw(&mut self, frame: &mut Frame<'_>, board: &Board) {
        // A sentence that is cut says nothing.
        let width = usize::from(frame.area().width.max(1));
        let long = |line: &String| (line.chars().count() * 5 / 4).div_ceil(width);
        let missing = board.missing.iter().map(long).sum::<usize>().min(6) as u16;
        let lines = [
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Min(1),
            Constraint::Length(missing),
            Constraint::Length(1),
        ];
        let [head, tabs, body, notes, help] = Layout::vertical(lines).areas(frame.area());
        let paused = if self.paused { " [paused]" } else { "" };
        let line = format!("gpuos top: {}{paused}", summary(board));
        frame.render_widget(Paragraph::new(whole_parts(&line, width)), head);
        frame.render_widget(Paragraph::new(self.tabs(board)), tabs);
        self.table(frame, body, &rows(board, self.kind, &self.pick));
        let notes_text: Vec<Line<'_>> = board
            .missing
            .iter()
            .map(|line| Line::from(gpuos_model::screen::line(line)))
            .collect();
        frame.render_widget(
            Paragraph::new(notes_text)
                .wrap(Wrap { trim: true })
                .style(self.style(Tone::Warn)),
            notes,
        );
        let bottom = match (self.writing, self.pick.filter.is_empty()) {
            (true, _) => format!("filter: {}_   Enter keep  Esc clear", self.pick.filter),
            (false, false) => format!("q: quit  /: change   filter: {}", self.pick.filter),
            (false, true) => HELP.into(),
        };
        frame.render_widget(Paragraph::new(bottom), help);
    }

    fn tabs(&self, board: &Board) -> Line<'static> {
        let count = |kind: Kind| match kind {
            Kind::Nodes => board.nodes.len(),
            Kind::Gpus => board.gpus.len(),
            Kind::Jobs => board.jobs.len(),
            Kind::Faults => board.faults.len(),
            Kind::Processes => board.processes.len(),
            Kind::Slices => board.slices.len(),
        };
        let mut spans = Vec::new();
        for (number, kind) in Kind::ALL.into_iter().enumerate() {
            let text = format!(" {} {} {} ", number + 1, kind.title(), count(kind));
            let style = match kind == self.kind {
                true => Style::new().add_modifier(Modifier::REVERSED),
                false if kind == Kind::Faults && count(kind) > 0 => self.style(Tone::Bad),
                false => Style::new(),
            };
            spans.push(Span::styled(text, style));
            spans.push(Span::raw(" "));
        }
        Line::from(spans)
    }

    fn table(&mut self, frame: &mut Frame<'_>, area: Rect, rows: &[Row]) {
        let headings = self.kind.headings();
        self.seen = (rows.len(), usize::from(area.height.saturating_sub(1)));
        let last = rows.len().saturating_sub(1);
        self.state
            .select(self.state.selected().map(|at| at.min(last)));
        let sorted = self
            .pick
            .sort
            .as_ref()
            .and_then(|name| self.kind.column(name));
        let heading =
            |(column, text): (usize, &&str)| match (sorted == Some(column), self.pick.reverse) {
                (true, false) => format!("{text}↑"),
                (true, true) => format!("{text}↓"),
                (false, _) => text.to_string(),
            };
        let titles: Vec<String> = headings.iter().enumerate().map(heading).collect();
        let width = |column: usize| {
            let cells = rows.iter().map(|row| row.cells[column].chars().count());
            cells
                .chain([titles[column].chars().count()])
                .max()
                .unwrap_or(0) as u16
        };
        // What is left is the last column's.
        let mut widths: Vec<Constraint> = (0..headings.len())
            .map(|column| Constraint::Length(width(column)))
            .collect();
        if let Some(end) = widths.last_mut() {
            *end = Constraint::Fill(1);
        }
        let number = |column: usize| {
            let cells = rows.iter().map(|row| row.cells[column].as_str());
            let mut given = cells.filter(|cell| !cell.is_empty()).peekable();
            given.peek().is_some() && given.all(|cell| cell.parse::<f64>().is_ok())
        };
        let right: Vec<bool> = (0..headings.len()).map(number).collect();
        let cell = |column: usize, text: &str| {
            let side = if right[column] {
                Alignment::Right
            } else {
                Alignment::Left
            };
            Cell::from(Line::from(text.to_string()).alignment(side))
        };
        let line = |cells: &[String]| {
            let cells = cells.iter().enumerate();
            Drawn::new(
                cells
                    .map(|(column, text)| cell(column, text))
                    .collect::<Vec<_>>(),
            )
        };
        let header = line(&titles).style(Style::new().add_modifier(Modifier::BOLD));
        let drawn = rows
            .iter()
            .map(|row| line(&row.cells).style(self.style(row.tone)));
        let table = Table::new(drawn, widths)
            .header(header)
            .column_spacing(2)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, area, &mut self.state);
    }
}

#[cfg(test)]
#[path = "screen_tests.rs"]
mod tests;
