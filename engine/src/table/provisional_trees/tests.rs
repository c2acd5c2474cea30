use super::*;
use crate::btree::tests::{fixture, put};
use crate::space;

/// A space, and a tree in it that is noted and has some levels.
fn noted_tree() -> (Arc<Env>, Arc<Space>, TreeRecord) {
    let (env, space) = fixture::space(&fixture::options(200, 4096));
    let mut mtr = Mtr::begin(&env).unwrap();
    space::create(&mut mtr, &env, &space).unwrap();
    mtr.commit();
    let note = create(&env, &space, 20).unwrap();
    fill(&env, &space, note);
    (env, space, note)
}

fn fill(env: &Arc<Env>, space: &Arc<Space>, tree: TreeRecord) -> Tree {
    let tree = Tree::open(env, space, tree.root, tree.tree);
    for n in 0..2000u32 {
        put(&tree, &n.to_be_bytes(), &[7; 100]).unwrap();
    }
    tree
}

/// Notes a tree once more, as versions did that did not look whether it was noted.
fn note_again(env: &Env, space: &Space, tree: TreeRecord) {
    let mut mtr = Mtr::begin(env).unwrap();
    let header = mtr.exclusive(space, 0).unwrap();
    let at = find_vacant(mtr.page(header)).unwrap();
    write(&mut mtr, header, at, tree);
    mtr.commit();
}

#[test]
fn a_tree_is_noted_once() {
    let (env, space, note) = noted_tree();
    let other = create(&env, &space, 21).unwrap();
    add(&env, &space, note).unwrap();
    assert_eq!(all(&env, &space).unwrap(), [note, other]);
    forget(&env, &space, note.tree).unwrap();
    assert_eq!(all(&env, &space).unwrap(), [other]);
    add(&env, &space, note).unwrap();
    assert_eq!(all(&env, &space).unwrap(), [note, other]);
    free(&env, &space, other).unwrap();
    free(&env, &space, note).unwrap();
    assert_eq!(all(&env, &space).unwrap(), []);
    assert_eq!(space::allocated_pages(&env, &space).unwrap(), [0, 1]);
}

#[test]
fn all_notes_of_a_tree_go_with_it() {
    let (env, space, note) = noted_tree();
    note_again(&env, &space, note);
    forget(&env, &space, note.tree).unwrap();
    assert_eq!(all(&env, &space).unwrap(), []);
    note_again(&env, &space, note);
    note_again(&env, &space, note);
    free(&env, &space, note).unwrap();
    assert_eq!(all(&env, &space).unwrap(), []);
    assert_eq!(space::allocated_pages(&env, &space).unwrap(), [0, 1]);
}

#[test]
fn a_note_that_outlived_its_tree_frees_nothing() {
    let (env, space, note) = noted_tree();
    free(&env, &space, note).unwrap();
    // The page belongs to no tree.
    add(&env, &space, note).unwrap();
    free(&env, &space, note).unwrap();
    assert_eq!(all(&env, &space).unwrap(), []);
    // The page is another tree's root, and a tree's root again that is noted itself.
    add(&env, &space, note).unwrap();
    let other = create(&env, &space, 21).unwrap();
    assert_eq!(other.root, note.root, "the page is taken again");
    let tree = fill(&env, &space, other);
    let pages = space::allocated_pages(&env, &space).unwrap();
    free(&env, &space, note).unwrap();
    assert_eq!(all(&env, &space).unwrap(), [other]);
    assert_eq!(space::allocated_pages(&env, &space).unwrap(), pages);
    assert_eq!(tree.check(&mut |_, _| Ok(())).unwrap().entries, 2000);
    // Nor does who does not look first.
    let stale = Tree::open(&env, &space, note.root, note.tree);
    let error = stale.free_step(None).unwrap_err().to_string();
    assert!(error.contains("a node of tree 21, not 20"), "{error}");
    free(&env, &space, other).unwrap();
    // An overflow page that has the number of the tree is none of its nodes.
    let mut mtr = Mtr::begin(&env).unwrap();
    let mut allocation = space::Allocation::reserve(&mut mtr, &space, 0, 1).unwrap();
    let (head, _) = crate::overflow::start(&mut mtr, &mut allocation, 20, b"long");
    mtr.commit();
    assert_eq!(head, note.root);
    add(&env, &space, note).unwrap();
    free(&env, &space, note).unwrap();
    assert_eq!(space::allocated_pages(&env, &space).unwrap(), [0, 1, head]);
}
