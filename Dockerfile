# docker build -t lipcert . && docker run --rm -v "$PWD/runs:/lipcert/runs" lipcert
# trains, proves, checks, attacks and reports a network on the embedded digits: `make demo`.
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends make git && rm -rf /var/lib/apt/lists/*
WORKDIR /lipcert
COPY . .
RUN make .venv/demo
CMD ["make", "demo"]
