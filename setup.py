"""Package metadata of graph_emb: learnable graph embeddings as a DGL integration."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent

# torch 2.13.0 is the tested CPU build; requirements/tested.txt pins the whole tested set.
INSTALL_REQUIRES = [
    "torch>=2.4",
    "dgl==1.1.3; python_version < '3.12'",
    "dgl==2.1.0; python_version >= '3.12'",
    "packaging",
    "numpy>=1.26",
    "cloudpickle>=3",
    "numba>=0.60",
    "scipy>=1.11",
    "networkx>=3.1",
    "ogb>=1.3.6",
    "pandas>=2.1",
    "scikit-learn>=1.6",
    "pyarrow>=15",
    "safetensors>=0.4",
    "tqdm>=4.66",
    "pydantic>=2.6",
    "pyyaml>=6",
    "tabulate>=0.9",
    "matplotlib>=3.8",
    "psutil>=5.9",
    "threadpoolctl>=3.1",
    "typing_extensions>=4.6",
    "xxhash>=3",
]

EXTRAS_REQUIRE = {
    "test": [
        "pytest>=8",
        "pytest-xdist>=3.6",
        "hypothesis>=6",
        "optuna>=4",
        "tensorboard>=2.15",
        "faiss-cpu>=1.8",
        "pymetis",
        "kaminpar",
        "mtkahypar",
        "mypy",  # checks a user's code
        "nbclient>=0.10",  # runs the tutorials
        "nbformat>=5.10",
        "ipykernel>=6.29",
        "setuptools>=70.1",  # builds the wheel that is tested
        "fbgemm-gpu-cpu; python_version >= '3.11'",  # compared with; it pins its torch, so the rest must fit
    ],
    "lint": ["ruff", "mypy", "pandas-stubs", "types-PyYAML", "types-tabulate", "types-tqdm", "types-psutil"],
    "docs": ["sphinx>=7", "myst-nb>=1.1", "furo"],
    "tune": ["optuna>=4"],
    "tensorboard": ["tensorboard>=2.15"],
    "mlflow": ["mlflow>=2.9"],
    "wandb": ["wandb>=0.17"],
    "hnswlib": ["hnswlib>=0.8"],  # built from source by pip
    "faiss": ["faiss-cpu>=1.8"],
    "pymetis": ["pymetis"],
    "kaminpar": ["kaminpar"],
    "mtkahypar": ["mtkahypar"],
    "bench": ["gensim>=4.4", "pecanpy", "fbgemm-gpu-cpu"],
}

setup(
    name="graph_emb",
    version="0.1.0",
    description="Learnable node and edge embeddings for partitioned graphs: exact, fast, safe to kill",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10,<3.13",
    packages=find_packages(include=["graph_emb", "graph_emb.*", "partition", "partition.*"]),
    package_data={"graph_emb": ["py.typed"], "partition": ["py.typed"]},
    install_requires=INSTALL_REQUIRES,
    extras_require=EXTRAS_REQUIRE,
    entry_points={"console_scripts": ["graph-emb = graph_emb.cli.main:main"]},
    classifiers=[
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
