"""Makes the pictures of docs/img from the real app: `python scripts/screenshots.py`."""

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.browser.conftest import ARGS, CHROMIUM, serve, settled  # noqa: E402

PICTURES = ROOT / "docs" / "img"
SHOTS = (
    # name, address, width, height, colours
    ("attention-light-1280-en", "/?layer=9&head=2", 1280, 1000, "light"),
    ("attention-dark-1280-en", "/?layer=9&head=2&colour=normalized_entropy", 1280, 1000, "dark"),
    ("attention-light-1920-zh", "/?layer=7&head=4&lang=zh", 1920, 1080, "light"),
    ("attention-dark-1920-zh", "/?model=smollm2-135m&layer=12&head=3&lang=zh", 1920, 1080, "dark"),
    ("overview-light-1280-en", "/overview?model=smollm2-135m", 1280, 1000, "light"),
    ("overview-dark-1920-zh", "/overview?lang=zh", 1920, 1080, "dark"),
)
TEXTS = {
    "attention-dark-1280-en": "The animal didn't cross the street because it was too tired.",
    "attention-light-1920-zh": "我一边吃着甜苹果，一边看苹果公司的市值上涨",
    "overview-light-1280-en": "The capital of France is",
}


def painted(page: Page) -> None:
    settled(page)
    if "overview" not in page.url:
        page.wait_for_selector(".gtitle", state="attached")
    page.wait_for_timeout(3000)


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    installed = next((path for path in CHROMIUM if Path(path).exists()), None)
    with (
        tempfile.TemporaryDirectory() as folder,
        serve("app.py", Path(folder)) as address,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=installed, args=ARGS)
        for name, path, width, height, scheme in SHOTS:
            page = browser.new_page(
                viewport={"width": width, "height": height}, color_scheme=scheme, locale="en-US"
            )
            page.goto(address + path)
            painted(page)
            if name in TEXTS:
                page.locator("textarea").fill(TEXTS[name])
                page.locator('[data-testid="stFormSubmitButton"] button').click()
                page.wait_for_timeout(500)
                painted(page)
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            # 256 colours, mixed where the colour bars need more, make a third of the file.
            small = picture.quantize(palette=picture.quantize(256, kmeans=1))
            small.save(PICTURES / f"{name}.png", optimize=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
