# docker build -t understudy . && docker run --rm -v "$PWD/exp_dir:/app/exp_dir" understudy --implementation PPO --gamename cartpole
FROM python:3.12-slim
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE trainer.py ./
COPY understudy understudy
COPY models models
COPY envs envs
COPY control control
RUN pip install --no-cache-dir -c constraints.txt -e '.[train]'
ENV OMP_NUM_THREADS=1
ENTRYPOINT ["python", "trainer.py"]
