"""Pictures of the realm: the map, the points, the hero and the way that he came, as pixels or as text.

For `env.render()`, `realm map`, `realm record`, `realm play`, the picture of `realm eval`, and everybody who has a
`State`. `moment` copies from a state what a picture shows and `record` plays an episode; `draw` and `ansi` make a
picture of it, `frames` an animation; `write_png` and `write_gif` write files. `regrets.py` draws an evaluation;
`page.py` makes a page that plays an episode in a browser.
"""

from realm.env.draw.page import page
from realm.env.draw.pen import to_pixel
from realm.env.draw.picture import draw, frames, write_gif, write_png
from realm.env.draw.recording import Moment, Recording, Route, moment, record
from realm.env.draw.text import ansi

__all__ = [
    "Moment",
    "Recording",
    "Route",
    "ansi",
    "draw",
    "frames",
    "moment",
    "page",
    "record",
    "to_pixel",
    "write_gif",
    "write_png",
]
