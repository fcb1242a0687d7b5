"""Serve a calibrated predictor over HTTP with FastAPI.

Start it by `uvicorn serve:app`, and POST inputs `(n, 1, 64)` as JSON to `/predict`.
"""

from pathlib import Path

import fastapi
import torch

import probneural as pn

FUNCTIONS, EPOCHS, FILE = 200, 50, Path("burgers.safetensors")
burgers = pn.problems.Burgers(viscosity=0.1)
if not FILE.exists():
    train = burgers.sample(FUNCTIONS, resolution=64, seed=0)
    operator = pn.operators.FNO(1, 1, modes=(8,), width=16, depth=3, seed=0)
    pn.fit(operator, train, epochs=EPOCHS, seed=0)
    predictor = pn.heads.LastLayerLaplace().fit(operator, train)
    held_out = burgers.sample(100, resolution=64, seed=1)
    pn.save(pn.calibration.calibrate(predictor, held_out), FILE)
predictor, app = pn.load(FILE), fastapi.FastAPI()


@app.exception_handler(ValueError)  # errors of probneural are ValueErrors
def refuse(request: fastapi.Request, error: ValueError) -> fastapi.responses.JSONResponse:
    return fastapi.responses.JSONResponse({"detail": str(error)}, status_code=422)


@app.post("/predict")
def predict(values: list[list[list[float]]]) -> dict[str, list[list[list[float]]]]:
    inputs = pn.Field(torch.tensor(values), burgers.grid(64))
    u, band = predictor(inputs), predictor.band(inputs)
    fields = {"mean": u.mean, "std": u.standard_deviation, "lower": band.lower, "upper": band.upper}
    return {name: field.tolist() for name, field in fields.items()}
