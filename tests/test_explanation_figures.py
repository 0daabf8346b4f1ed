"""Figures of explanations: boxes, colours and numbers on them are those of the data."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure, FigureBase
from matplotlib.patches import Rectangle
from tiny_analysis import ask, ask_projected, make_data
from tiny_network import TinyBackbone

from dpp import figures
from dpp.analysis import figure_data, find_origin, follow_tree, local_analysis, reason
from dpp.analysis.global_analysis import global_analysis
from dpp.explanations import Audit, PartShare, Share
from dpp.figures import PART_COLOURS, explanation_figures, paper_figures, style, tree_figures
from dpp.figures.marked_pictures import (
    STROKE,
    THICKEST,
    Marked,
    draw_marked,
    mark,
    number_text,
    shorten_image,
    shorten_name,
    tie_ends,
    verdict,
    view_of,
)
from dpp.figures.score_sheets import remainder
from dpp.networks.soft_tree import ProtoTree
from dpp.system.errors import UserError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def no_open_figures():
    yield
    assert not pyplot.get_fignums()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data") / "cub")


@pytest.fixture(scope="module")
def network(data):
    return ask_projected(data)


def look(network, place: int = 0):
    return network.picture(network.source.test[place])


def sources(network) -> dict[int, Marked]:
    found = {number: find_origin(network, number) for number in network.origins}
    pixels = {
        seen.image: network.picture(network.records[seen.image]).pixels for seen in found.values()
    }
    return {number: mark(pixels[seen.image], seen) for number, seen in found.items()}


def boxes(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def extents(axes: Axes) -> np.ndarray:
    return np.array([box.get_bbox().extents for box in boxes(axes)])


def colours(axes: Axes) -> list[str]:
    return [to_hex(box.get_edgecolor()).upper() for box in boxes(axes)]


def texts(figure: Figure) -> list[str]:
    """All that is written, whether on axes or on figures."""
    found = figure.findobj(lambda artist: hasattr(artist, "get_text"))
    return [text.get_text() for text in found if text.get_text()]


def marked_axes(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.images and boxes(axes)]


def number(text: str) -> float:
    return float(text.replace("−", "-").replace(" ", ""))


# Pictures with parts


def test_every_part_has_a_box_in_its_colour_where_the_data_say():
    places = tuple((3.0 * i, 2.5 * i, 3.0 * i + 5, 2.5 * i + 4) for i in range(9))
    axes = Figure().add_subplot()
    draw_marked(axes, Marked(np.zeros((40, 60, 3), np.uint8), places, (20, 15)))
    assert extents(axes) == pytest.approx(np.array(places))
    assert colours(axes) == [colour.upper() for colour in PART_COLOURS]


def test_picture_keeps_its_proportions_and_counts_pixels_from_the_corner():
    axes = Figure().add_subplot()
    draw_marked(axes, Marked(np.zeros((40, 60, 3), np.uint8), ((1, 2, 5, 6),)))
    assert axes.get_xlim() == (0, 60) and axes.get_ylim() == (40, 0)
    assert axes.get_aspect() == 1


def test_view_grows_for_a_part_that_has_left_the_picture_but_not_without_end():
    picture = np.zeros((50, 100, 3), np.uint8)
    assert view_of(Marked(picture, ((-6, 10, 4, 20),))).extents.tolist() == [-6, 0, 100, 50]
    assert view_of(Marked(picture, ((900, 10, 910, 20),))).x1 == pytest.approx(120)


def test_part_far_outside_does_not_cut_off_the_others():
    figure = Figure()
    far = Marked(np.zeros((50, 100, 3), np.uint8), ((900, 0, 910, 9), (10, 10, 20, 20)), (5, 5))
    draw_marked(figure.add_subplot(), far)
    figure.draw_without_rendering()
    assert [box.get_visible() for box in boxes(figure.axes[0])] == [False, True]


@pytest.mark.parametrize("side, usual", [(4, False), (40, True)])
def test_outline_leaves_most_of_a_small_box_to_be_seen(side, usual):
    figure = Figure(figsize=(2, 2), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    draw_marked(axes, Marked(np.zeros((80, 80, 3), np.uint8), ((20, 20, 20 + side, 20 + side),)))
    FigureCanvasAgg(figure).draw()
    points = side / 80 * 2 * 72
    width = boxes(axes)[0].get_linewidth() / 2  # what lies within the box
    assert (width == STROKE) == usual
    assert width < THICKEST * points
    outside = Marked(np.zeros((80, 80, 3), np.uint8), ((500, 500, 500 + side, 500 + side),))
    draw_marked(axes, outside)
    FigureCanvasAgg(figure).draw()  # a box that is not seen is no error


def test_ties_end_at_the_edges_of_boxes_and_none_goes_to_a_box_around_the_centre():
    marked = Marked(np.zeros((9, 9, 3), np.uint8), ((6, 2, 8, 4), (2, 2, 4, 4)), (3, 3))
    assert tie_ends(marked) == [(3, 3, 6, 3)]


@pytest.mark.parametrize("kind", ["deformable", "dilated"])
def test_centre_in_pixels_is_the_cell_of_the_match(data, kind):
    network = ask_projected(data, kind)
    picture = look(network)
    for match in reason(network, picture).classes[0].matches:
        wanted = picture.geometry.cell_to_image(match.centre, (4, 4))[::-1]
        assert mark(picture.pixels, match).centre == pytest.approx(wanted)


def test_names_lose_their_number_and_are_cut_to_a_width():
    assert shorten_name("012.Yellow_headed_Blackbird") == "Yellow headed Blackbird"
    assert shorten_name("St. John") == "St. John"
    assert len(shorten_name("a" * 50, 20)) == 20


def test_images_lose_their_folders_and_are_cut_in_the_middle():
    assert shorten_image("12") == "12" and shorten_image("/home/me/3.png") == "3.png"
    assert shorten_image("a" * 30 + ".jpeg", 12) == "aaaaa…a.jpeg"


def test_numbers_have_a_true_minus_and_none_before_zero():
    assert [number_text(value) for value in (-1.234, -0.001, 2)] == ["−1.23", "0.00", "2.00"]


# Explanations


@pytest.fixture(scope="module")
def reasoned(network):
    picture = look(network)
    explanation = reason(network, picture)
    shown = sources(network)
    names = network.source.class_names
    figure = explanation_figures.reasoning(explanation, picture.pixels, shown, names, top=2)
    return explanation, shown, figure


def test_reasoning_draws_parts_of_image_and_source_in_the_same_colours(reasoned):
    explanation, shown, figure = reasoned
    drawn = marked_axes(figure)
    matches = [match for one in explanation.classes for match in one.matches[:2]]
    assert len(drawn) == 2 * len(matches)
    for match, here, there in zip(matches, drawn[::2], drawn[1::2], strict=True):
        assert extents(here) == pytest.approx(np.array([part.box for part in match.parts]))
        assert extents(there) == pytest.approx(np.array(shown[match.prototype].boxes))
        assert colours(here) == colours(there)
        assert len(set(colours(here))) == len(match.parts)


def test_reasoning_prints_the_numbers_of_the_data_and_they_add_up(network, reasoned):
    explanation, shown, _ = reasoned
    picture = look(network).pixels
    for one in explanation.classes:
        alone = replace(explanation, classes=(one,))
        names = network.source.class_names
        figure = explanation_figures.reasoning(alone, picture, shown, names, top=1)
        written = texts(figure)
        match = one.matches[0]
        for wanted in (
            number_text(match.similarity, 3),
            number_text(match.connection),
            number_text(match.points),
            number_text(one.score),
        ):
            assert wanted in written
        rest = written[written.index("all other prototypes") - 1]
        assert round(match.points, 2) + number(rest) == pytest.approx(round(one.score, 2))
        assert number(rest) == pytest.approx(one.score - match.points, abs=0.02)


def test_bars_are_in_order_of_score_and_mark_the_classes(network, reasoned):
    explanation, shown, _ = reasoned
    picture, names = look(network).pixels, network.source.class_names
    three = reason(network, look(network), count=3)
    best, second, third = three.classes
    moved = replace(three, label=third.label, classes=(best, third, second))
    figure = explanation_figures.reasoning(moved, picture, shown, names)
    (bars,) = [axes for axes in figure.axes if len(axes.patches) == 3 and not axes.images]
    scores = [bar.get_width() for bar in bars.patches]
    assert scores == sorted(scores, reverse=True)
    roles = [text.get_text() for text in bars.texts[1::2]]
    assert roles == ["predicted, explained", "", "true, explained"]
    assert to_hex(bars.patches[1].get_facecolor()) == to_hex("0.7")


def test_verdict_names_the_true_class_if_the_prediction_is_incorrect(reasoned):
    names = ["a", "b", "c"]
    one = replace(reasoned[0], predicted=1, label=1)
    assert verdict(one, names) == "predicted b, correct"
    assert verdict(replace(one, label=2), names) == "predicted b, incorrect, true class c"
    assert verdict(replace(one, label=None), names) == "predicted b"


def test_remainder_takes_up_the_rounding(network):
    (one, _) = reason(network, look(network)).classes
    points = [0.004, 0.004, 0.004]
    matches = [replace(one.matches[0], points=value) for value in points]
    assert remainder(replace(one, score=0.012), matches) == 0.01


def test_reasoning_without_origins_says_so(data, network):
    picture, unknown = look(network), {}
    names = network.source.class_names
    explanation = reason(network, picture)
    figure = explanation_figures.reasoning(explanation, picture.pixels, unknown, names)
    assert "not projected" in texts(figure)


def test_local_analysis_shows_sources_above_and_the_image_below(network):
    picture, shown = look(network), sources(network)
    explanation = local_analysis(network, picture, 2)
    names = network.source.class_names
    drawn = marked_axes(
        explanation_figures.local_analysis(explanation, picture.pixels, shown, names)
    )
    assert len(drawn) == 4
    for match, above, below in zip(explanation.matches, drawn[::2], drawn[1::2], strict=True):
        assert extents(above) == pytest.approx(np.array(shown[match.prototype].boxes))
        assert extents(below) == pytest.approx(np.array([part.box for part in match.parts]))
        assert number_text(match.similarity, 3) in below.get_title()


def test_global_analysis_shows_the_source_and_all_neighbours(network, data):
    one = global_analysis(network, data.splits.projection, data.splits.test, 2).prototypes[1]
    seen = one.train + one.test
    pictures = {s.image: network.picture(network.records[s.image]).pixels for s in seen}
    source = sources(network)[one.prototype]
    figure = explanation_figures.global_analysis(one, source, pictures, network.source.class_names)
    drawn = marked_axes(figure)
    assert len(drawn) == 1 + len(seen)
    for sighting, axes in zip(seen, drawn[1:], strict=True):
        assert extents(axes) == pytest.approx(np.array([part.box for part in sighting.parts]))
        assert number_text(sighting.similarity, 3) in axes.get_title()


def test_tree_path_shows_every_step_and_both_probabilities(data):
    network = ask(ProtoTree(TinyBackbone(), 3, depth=3), data)
    picture = look(network)
    path = follow_tree(network, picture)
    shown = {step.node: Marked(picture.pixels, (tuple(step.box),)) for step in path.steps}
    figure = tree_figures.tree_path(path, picture.pixels, shown, network.source.class_names)
    drawn = marked_axes(figure)
    written = texts(figure)
    assert len(drawn) == 2 * len(path.steps)
    for step, axes in zip(path.steps, drawn[1::2], strict=True):
        assert extents(axes) == pytest.approx(np.array([step.box]))
        taken, other = ("present", "absent")[:: 1 if step.branch == "right" else -1]
        assert f"{taken}: {number_text(step.probability)}" in written
        assert f"{other}: {number_text(1 - step.probability)}" in written


# Tables as figures


def test_confusion_has_every_count_at_its_place():
    matrix = np.array([[5, 0, 1], [0, 6, 0], [2, 0, 4]])
    (axes,) = explanation_figures.confusion(matrix, ["a", "b", "c"]).axes
    found = {text.get_position(): text.get_text() for text in axes.texts}
    assert found == {(0, 0): "5", (2, 0): "1", (1, 1): "6", (0, 2): "2", (2, 2): "4"}


def test_audit_has_a_bar_for_each_share():
    near = PartShare(Share(3, 4), Share(1, 8))
    found = Audit("run", 6, (), ((0, 1, 2),), 3, 2, Share(0, 4), Share(0, 0), near)
    (axes,) = explanation_figures.audit(found).axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([0.75, 0, 0, 2 / 6])
    assert axes.texts[0].get_text() == "75.0% (3 of 4), by chance 12.5%"
    assert axes.texts[1].get_text() == "no data"


# Figures 1 to 4


@pytest.fixture(scope="module")
def applied(network):
    return figure_data.apply_prototype(network, look(network), 1)


def test_application_is_what_reasoning_says(network, applied):
    matches = [m for one in reason(network, look(network), [0]).classes for m in one.matches]
    (match,) = [match for match in matches if match.prototype == 1]
    # One image is seen twice: its features may differ in their last bits, and offsets with them.
    for one, other in zip(applied.match.parts, match.parts, strict=True):
        assert one.place == pytest.approx(other.place, abs=1e-4)
        assert tuple(one.box) == pytest.approx(tuple(other.box), abs=1e-3)
        assert one.contribution == pytest.approx(other.contribution, abs=1e-5)
    assert applied.similarities.max() == pytest.approx(match.similarity, abs=1e-5)
    where = np.unravel_index(applied.similarities.argmax(), applied.similarities.shape)
    assert tuple(where) == match.centre
    places = np.array(match.centre) + applied.rest + applied.offsets[:, :, *match.centre]
    assert places == pytest.approx(np.array([part.place for part in match.parts]), abs=1e-4)


def test_rigid_application_has_parts_at_rest(network):
    found = figure_data.apply_prototype(network, look(network), 1, rigid=True)
    places = np.array([part.place for part in found.match.parts])
    assert places == pytest.approx(np.array(found.match.centre) + found.rest)
    boxes = np.array([part.box for part in found.match.parts])
    assert boxes == pytest.approx(np.array(found.rest_boxes))
    assert found.similarities.max() == pytest.approx(found.match.similarity, abs=1e-5)


def test_application_draws_the_offsets_and_marks_the_maximum(network, applied):
    figure = paper_figures.application(applied, look(network).pixels)
    fields = [axes.collections[0] for axes in figure.axes if axes.collections]
    drawn = np.array([[field.V, field.U] for field in fields])  # down, right
    assert drawn == pytest.approx(applied.offsets.reshape(*applied.offsets.shape[:2], -1))
    row, column = applied.match.centre
    (shown,) = figure.subfigs[4].axes
    assert shown.lines[0].get_xydata().tolist() == [[column, row]]
    assert np.asarray(shown.images[0].get_array()) == pytest.approx(applied.similarities)


def test_offset_fields_of_large_maps_have_few_arrows(network, applied):
    large = replace(applied, offsets=np.repeat(np.repeat(applied.offsets, 4, 2), 4, 3))  # 16 x 16
    figure = paper_figures.application(large, look(network).pixels)
    fields = [axes.collections[0] for axes in figure.axes if axes.collections]
    assert len(fields) == 9 and all(len(field.U) == 16 for field in fields)


def test_comparison_joins_equal_parts_of_image_and_source(network, applied):
    pixels, source = look(network).pixels, sources(network)[1]
    pair = (mark(pixels, applied.match), source, applied.match.similarity)
    figure = paper_figures.comparison({"(a) rigid": pair, "(b) deformable": pair})
    first = figure.subfigs[0]
    joined = [to_hex(line.get_edgecolor()).upper() for line in first.artists]
    assert joined == colours(first.axes[0]) == colours(first.axes[1])
    assert f"(a) rigid: similarity {number_text(applied.match.similarity, 3)}" in texts(figure)


def test_architecture_has_the_shapes_of_a_real_pass(network):
    blocks = figure_data.architecture_of(network.model, 16)
    assert [(block.name, block.shape) for block in blocks] == [
        ("image", (3, 16, 16)),
        ("features", (6, 4, 4)),
        ("z", (7, 4, 4)),
        ("offsets", (18, 4, 4)),
        ("prototypes", (6, 7, 3, 3)),
        ("similarities", (6, 4, 4)),
        ("scores", (6,)),
        ("logits", (3,)),
    ]
    written = texts(paper_figures.architecture(blocks))
    assert all(" × ".join(map(str, block.shape)) in written for block in blocks)


@pytest.mark.parametrize("kind", ["rigid", "protopnet", "tesnet"])
def test_architecture_of_other_networks_is_drawn_without_offsets(data, kind):
    blocks = figure_data.architecture_of(ask_projected(data, kind).model, 16)
    assert "offsets Δ" not in texts(paper_figures.architecture(blocks))


def test_angles_around_a_vector_are_true_angles():
    vectors = np.random.default_rng(0).normal(size=(8, 5))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    _, angles = paper_figures.angles_around(vectors[0], vectors)
    assert np.cos(angles) == pytest.approx(vectors @ vectors[0])


def test_latent_space_holds_unit_vectors_whose_cosines_are_the_scores(network, data):
    labels = [1, 0]
    space = figure_data.latent_space_of(network, data.splits.test, labels, margin=0.1)
    for vectors in (space.prototypes, space.parts, space.features, space.patches):
        assert np.linalg.norm(vectors, axis=-1) == pytest.approx(1, abs=1e-5)
    chosen = [data.splits.test.labels.tolist().index(label) for label in labels]
    scores = network.inspect(data.splits.test[chosen[0]].images[None]).scores[0]
    assert space.features[0] @ space.prototypes[0] == pytest.approx(float(scores[2]), abs=1e-5)
    figure = paper_figures.latent_space(space, network.source.class_names)
    assert "lines: the margin φ = 0.1" in figure.axes[0].get_title()


def test_figure_two_is_refused_for_a_network_without_deformable_prototypes(data):
    network = ask_projected(data, "protopnet")
    with pytest.raises(UserError, match="no deformable prototypes"):
        figure_data.apply_prototype(network, look(network), 0)


@pytest.mark.parametrize("ending", ["png", "pdf"])
def test_same_figure_is_saved_with_the_same_bytes(tmp_path, network, ending):
    picture = look(network)
    explanation = reason(network, picture)
    names = network.source.class_names
    for name in "ab":
        figure = explanation_figures.reasoning(explanation, picture.pixels, sources(network), names)
        figures.save(figure, tmp_path / f"{name}.{ending}")
    first, second = ((tmp_path / f"{name}.{ending}").read_bytes() for name in "ab")
    assert first == second and len(first) > 1000


@pytest.fixture
def drawn(network, data, reasoned, applied) -> dict[str, Figure]:
    """One figure of each kind."""
    picture, shown = look(network), sources(network)
    names = [f"{place:03}.A_bird_whose_name_is_as_long_as_names_can_be" for place in range(3)]
    similar = local_analysis(network, picture, 2)
    tree = ask(ProtoTree(TinyBackbone(), 3, depth=3), data)
    path = follow_tree(tree, picture)
    blocks = figure_data.architecture_of(network.model, 16)
    classes = [replace(one, name=names[one.label]) for one in reasoned[0].classes]
    far = "/folder/" * 9 + "a picture whose name is rather long, too.jpeg"
    wrong = {"image": far, "label": (reasoned[0].predicted + 1) % 3, "classes": classes}
    long = replace(reasoned[0], **wrong)
    return {
        "reasoning": explanation_figures.reasoning(long, picture.pixels, shown, names),
        "local": explanation_figures.local_analysis(similar, picture.pixels, shown, names),
        "tree": tree_figures.tree_path(path, picture.pixels, {}, names),
        "application": paper_figures.application(applied, picture.pixels),
        "architecture": paper_figures.architecture(blocks, "a title"),
        "confusion": explanation_figures.confusion(np.eye(3, dtype=int), names),
    }


def cut_texts(figure: Figure) -> list[str]:
    """Texts that stick out of a figure."""
    figure.draw_without_rendering()
    parts = figure.findobj(lambda artist: isinstance(artist, FigureBase))
    written = [text for part in parts for text in part.texts]
    for axes in figure.axes:
        written += [*axes.texts, axes.title, axes._left_title]
        if axes.axison:
            written += [*axes.get_xticklabels(), *axes.get_yticklabels()]
            written += [axes.xaxis.label, axes.yaxis.label]
    page = figure.bbox.padded(1)
    extents = {text: text.get_window_extent() for text in written if text.get_text()}
    return [
        text.get_text()
        for text, box in extents.items()
        if not (page.contains(box.x0, box.y0) and page.contains(box.x1, box.y1))
    ]


@pytest.mark.filterwarnings("error")
def test_no_text_is_cut(drawn):
    assert {name: cut_texts(figure) for name, figure in drawn.items()} == dict.fromkeys(drawn, [])


def test_cut_text_is_seen():
    figure = Figure()
    figure.text(0.95, 0.5, "a text that is far too long for its place")
    assert cut_texts(figure)


@pytest.mark.parametrize("name", ["$$", "$x_{$", r"$\alpha$", "cash$money$", "a_b^c"])
def test_class_names_are_never_read_as_formulas(name, tmp_path):
    figure = explanation_figures.confusion(np.eye(2, dtype=int), [name, "other"])
    style.save(figure, tmp_path / "figure.png")
    texts = [text.get_text() for axes in figure.axes for text in axes.get_xticklabels()]
    assert any(shorten_name(name) in text for text in texts)
    assert not any(text.get_parse_math() for axes in figure.axes for text in axes.get_xticklabels())
