# Trains in a container: docker compose up train. Without a GPU; torch is its CPU build.
FROM python:3.11-slim

# a user of its own: nothing here needs the rights of root
RUN useradd --create-home --uid 1000 realm && mkdir /realm && chown realm /realm
USER realm
WORKDIR /realm

# the environment first, so that a change of the code does not make it again
COPY --chown=realm requirements.lock requirements.torch.lock requirements.dev.lock ./
COPY --chown=realm tools/setup.sh tools/test.sh tools/
RUN PIP_NO_CACHE_DIR=1 PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu tools/test.sh --setup-only

COPY --chown=realm . .
VOLUME /realm/train

# Ctrl+C and `docker stop` end the run and save a checkpoint
STOPSIGNAL SIGINT
CMD ["tools/start.sh"]
