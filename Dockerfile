# The organiser and the participants of a federation, and everything else of isonomy, in one image.
#
#   docker build -t isonomy .
#   docker run --rm -v "$PWD:/project" -p 9092:9092 isonomy serve trial.toml --keys keys
#   docker run --rm -it -v "$PWD:/project" isonomy join --server HOST:9092 --data my.csv --key north --ca ca.crt
#
# PIP_OPTIONS are passed to pip, for example --extra-index-url with an index that has torch without
# CUDA, which makes the image several GB smaller.
FROM python:3.12-slim
ARG PIP_OPTIONS=""
COPY pyproject.toml constraints.txt README.md LICENSE /src/
COPY src /src/src
COPY deploy /src/deploy
RUN sh /src/deploy/install.sh /opt/isonomy
ENV PATH=/opt/isonomy/bin:$PATH ISONOMY_DATA=/project/cache
RUN useradd --create-home isonomy
USER isonomy
WORKDIR /project
EXPOSE 9092
ENTRYPOINT ["isonomy"]
CMD ["doctor"]
