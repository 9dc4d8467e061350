// Makes a PNG of a drawing in the browser: no other program is needed for it. The drawing comes as
// SVG; as an image it can run nothing and load nothing.

const SCALE = 3; // for print: 96 dots an inch become 288

export default function pngButton({ data, parentElement }) {
  const button = parentElement.querySelector("button");
  if (!button || !data) return undefined;
  button.textContent = data.label;
  button.title = data.help;
  button.onclick = async () => {
    button.disabled = true;
    const address = URL.createObjectURL(new Blob([data.svg], { type: "image/svg+xml" }));
    try {
      const image = new Image();
      image.src = address;
      await image.decode();
      const canvas = document.createElement("canvas");
      canvas.width = image.naturalWidth * SCALE;
      canvas.height = image.naturalHeight * SCALE;
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = data.name;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    } finally {
      URL.revokeObjectURL(address);
      button.disabled = false;
    }
  };
  return undefined;
}
