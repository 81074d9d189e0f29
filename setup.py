from pathlib import Path

from setuptools import find_packages, setup


ROOT = Path(__file__).parent
VERSION = {}
exec((ROOT / "src/diffusers_text_nfdm/version.py").read_text(encoding="utf-8"), VERSION)

# What only some users need. Each is imported where it is used, never by `import diffusers_text_nfdm`.
EXTRAS = {
    "train": ["accelerate>=1.6", "pyyaml>=6.0", "matplotlib>=3.9", "tensorboard>=2.18"],
    "eval": ["evaluate>=0.4.3", "mauve-text>=0.4.0", "matplotlib>=3.9", "pyyaml>=6.0"],
    "references": ["sacrebleu>=2.4", "rouge_score>=0.1.2"],
    "demo": ["gradio>=6.31", "matplotlib>=3.9"],
    "docs": ["pdoc>=15.0"],
    "test-page": ["playwright>=1.65"],
    "test": ["pytest>=8.0", "pytest-timeout>=2.3", "pytest-xdist>=3.5", "hypothesis>=6.100", "scipy>=1.13"],
}
EXTRAS["test"] += EXTRAS["train"] + EXTRAS["eval"] + EXTRAS["references"] + EXTRAS["docs"]
EXTRAS["dev"] = EXTRAS["test"] + ["ruff>=0.6", "spacy>=3.7", "build>=1.2"]

setup(
    name="diffusers_text_nfdm",
    version=VERSION["__version__"],
    description="Neural Flow Diffusion Models for text, as Hugging Face models, schedulers and pipelines",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    package_dir={"": "src"},
    packages=find_packages("src"),
    package_data={"diffusers_text_nfdm": ["**/*.yaml", "**/*.md", "py.typed"]},
    python_requires=">=3.10",
    install_requires=[
        "torch>=2.9",
        "transformers>=5.6",
        "diffusers>=0.40",
        "datasets>=4.3",
        "huggingface_hub>=1.23",
        "tokenizers>=0.22",
        "safetensors>=0.8",
        "numpy>=2.0",
    ],
    extras_require=EXTRAS,
    classifiers=[
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
